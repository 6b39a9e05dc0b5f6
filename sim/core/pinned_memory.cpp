#include "sim/core/pinned_memory.h"

#include <algorithm>
#include <bit>
#include <new>
#include <stdexcept>

#include <sys/mman.h>

namespace swapline::sim {

PinnedMemory::~PinnedMemory() {
  for (const auto& [begin, bytes] : blocks_) {
    munmap(reinterpret_cast<void*>(begin), bytes);
  }
}

void* PinnedMemory::allocate(size_t bytes) {
  bytes = std::max<size_t>(bytes, 1);
  if (rounds_) {
    bytes = std::bit_ceil(bytes);
  }
  const int protection = accessible_ ? PROT_READ | PROT_WRITE : PROT_NONE;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* data = mmap(nullptr, bytes, protection, flags, -1, 0);
  if (data == MAP_FAILED) {
    throw std::bad_alloc();
  }
  blocks_.emplace(reinterpret_cast<uintptr_t>(data), bytes);
  stats_.allocated_bytes += bytes;
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
  ++stats_.num_allocations;
  return data;
}

void PinnedMemory::free(void* data) {
  const size_t bytes = bytes_of(data);
  munmap(data, bytes);
  stats_.allocated_bytes -= bytes;
  blocks_.erase(reinterpret_cast<uintptr_t>(data));
}

size_t PinnedMemory::bytes_of(const void* data) const {
  const auto found = blocks_.find(reinterpret_cast<uintptr_t>(data));
  if (found == blocks_.end()) {
    throw std::invalid_argument("pinned memory that was not allocated here");
  }
  return found->second;
}

uintptr_t PinnedMemory::block_of(const void* data, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) {
    return 0;
  }
  const auto [begin, block_bytes] = *std::prev(after);
  const size_t offset = address - begin;
  return offset < block_bytes && bytes <= block_bytes - offset ? begin : 0;
}

}  // namespace swapline::sim
