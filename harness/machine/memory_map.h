// Which addresses are a device's memory, which are pinned, and how much there is of each. All of it
// is host memory of this process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace swapline::harness {

enum class Place { kPageable, kPinned, kDevice };

struct Block {
  uintptr_t begin = 0;
  size_t bytes = 0;
  Place place = Place::kPageable;
  int device = 0;
  bool is_mapped = false;  // into reserved addresses: the pages stay reserved when it goes
};

class MemoryMap {
 public:
  size_t device_capacity = size_t{8} << 30;  // bytes, of each device
  size_t pinned_capacity = size_t{8} << 30;  // bytes

  // Fresh memory, filled with bytes of ones (NaN), so that what nobody wrote shows.
  // nullptr: over the capacity.
  void* allocate(size_t bytes, Place place, int device);
  // False: nothing begins there.
  bool free(void* data);
  // The block that holds the address; nullptr: it is pageable memory.
  const Block* find(const void* data) const;
  Place place_of(const void* data) const;

  size_t device_bytes(int device) const;
  size_t pinned_bytes() const { return pinned_bytes_; }

  // Virtual memory: addresses first, memory behind them later.
  void* reserve(size_t bytes);
  void unreserve(void* data, size_t bytes);
  // Memory without an address. False: over the capacity.
  bool take_physical(size_t bytes, Place place, int device);
  void give_physical_back(size_t bytes, Place place, int device);
  void map(void* data, size_t bytes, Place place, int device);
  void unmap(void* data, size_t bytes);
  size_t mapped_bytes_at(void* data) const;

 private:
  size_t& used(Place place, int device);

  std::map<uintptr_t, Block> blocks_;
  std::map<int, size_t> device_bytes_;
  size_t pinned_bytes_ = 0;
};

std::string place_name(Place place);
// An address as the log has it.
std::string address_text(const void* data);

}  // namespace swapline::harness
