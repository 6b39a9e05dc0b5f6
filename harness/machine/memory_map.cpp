#include "harness/machine/memory_map.h"

#include <cstdio>
#include <cstring>
#include <iterator>

#include <sys/mman.h>

namespace swapline::harness {
namespace {

uintptr_t address_of(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

}  // namespace

std::string place_name(Place place) {
  return place == Place::kDevice ? "device" : place == Place::kPinned ? "pinned" : "pageable";
}

std::string address_text(const void* data) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", data);
  return text;
}

size_t& MemoryMap::used(Place place, int device) {
  return place == Place::kDevice ? device_bytes_[device] : pinned_bytes_;
}

bool MemoryMap::take_physical(size_t bytes, Place place, int device) {
  const size_t capacity = place == Place::kDevice ? device_capacity : pinned_capacity;
  size_t& held = used(place, device);
  if (held + bytes > capacity) {
    return false;
  }
  held += bytes;
  return true;
}

void MemoryMap::give_physical_back(size_t bytes, Place place, int device) {
  used(place, device) -= bytes;
}

void* MemoryMap::allocate(size_t bytes, Place place, int device) {
  if (!take_physical(bytes, place, device)) {
    return nullptr;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    give_physical_back(bytes, place, device);
    return nullptr;
  }
  std::memset(data, 0xff, bytes);
  blocks_[address_of(data)] = {address_of(data), bytes, place, device, false};
  return data;
}

bool MemoryMap::free(void* data) {
  const auto found = blocks_.find(address_of(data));
  if (found == blocks_.end() || found->second.is_mapped) {
    return false;
  }
  const Block block = found->second;
  give_physical_back(block.bytes, block.place, block.device);
  blocks_.erase(found);
  munmap(data, block.bytes);
  return true;
}

const Block* MemoryMap::find(const void* data) const {
  const auto after = blocks_.upper_bound(address_of(data));
  if (after == blocks_.begin()) {
    return nullptr;
  }
  const Block& block = std::prev(after)->second;
  return address_of(data) - block.begin < block.bytes ? &block : nullptr;
}

Place MemoryMap::place_of(const void* data) const {
  const Block* block = find(data);
  return block == nullptr ? Place::kPageable : block->place;
}

size_t MemoryMap::device_bytes(int device) const {
  const auto found = device_bytes_.find(device);
  return found == device_bytes_.end() ? 0 : found->second;
}

void* MemoryMap::reserve(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return data == MAP_FAILED ? nullptr : data;
}

void MemoryMap::unreserve(void* data, size_t bytes) {
  munmap(data, bytes);
}

void MemoryMap::map(void* data, size_t bytes, Place place, int device) {
  mprotect(data, bytes, PROT_READ | PROT_WRITE);
  std::memset(data, 0xff, bytes);
  blocks_[address_of(data)] = {address_of(data), bytes, place, device, true};
}

size_t MemoryMap::mapped_bytes_at(void* data) const {
  const auto found = blocks_.find(address_of(data));
  return found == blocks_.end() || !found->second.is_mapped ? 0 : found->second.bytes;
}

void MemoryMap::unmap(void* data, size_t bytes) {
  auto block = blocks_.lower_bound(address_of(data));
  while (block != blocks_.end() && block->first < address_of(data) + bytes) {
    block = blocks_.erase(block);
  }
  madvise(data, bytes, MADV_DONTNEED);
  mprotect(data, bytes, PROT_NONE);
}

}  // namespace swapline::harness
