#include "sim/core/address_range.h"

#include <algorithm>
#include <new>

#include <sys/mman.h>

namespace swapline::sim {
namespace {

constexpr size_t kPageBytes = 4096;

size_t round_up(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

AddressRange::AddressRange(size_t bytes, bool accessible)
    : bytes_(round_up(bytes)), accessible_(accessible) {
  const int protection = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* begin =
      mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) {
    throw std::bad_alloc();
  }
  begin_ = reinterpret_cast<uintptr_t>(begin);
  gaps_.emplace(begin_, bytes_);
}

AddressRange::~AddressRange() {
  munmap(reinterpret_cast<void*>(begin_), bytes_);
}

std::optional<uintptr_t> AddressRange::take(size_t bytes) {
  bytes = round_up(bytes);
  const auto gap = std::find_if(
      gaps_.begin(), gaps_.end(), [&](const auto& entry) { return entry.second >= bytes; });
  if (gap == gaps_.end()) {
    return std::nullopt;
  }
  const auto [begin, gap_bytes] = *gap;
  gaps_.erase(gap);
  if (gap_bytes > bytes) {
    gaps_.emplace(begin + bytes, gap_bytes - bytes);
  }
  return begin;
}

void AddressRange::give_back(uintptr_t begin, size_t bytes) {
  bytes = round_up(bytes);
  if (accessible_) {
    madvise(reinterpret_cast<void*>(begin), bytes, MADV_DONTNEED);
  }
  auto next = gaps_.lower_bound(begin);
  if (next != gaps_.end() && begin + bytes == next->first) {
    bytes += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin() && std::prev(next)->first + std::prev(next)->second == begin) {
    std::prev(next)->second += bytes;
  } else {
    gaps_.emplace_hint(next, begin, bytes);
  }
}

}  // namespace swapline::sim
