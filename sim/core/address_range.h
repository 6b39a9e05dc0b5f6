// A device's address range: reserved once, given out in page-aligned segments. Pages cost nothing
// until they are touched; in a dry run they cannot be touched at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace swapline::sim {

class AddressRange {
 public:
  // Throws std::bad_alloc when the system will not reserve that much address space.
  AddressRange(size_t bytes, bool accessible);
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  // First fit. nullopt: no gap is long enough.
  std::optional<uintptr_t> take(size_t bytes);
  // Gives a segment back and its pages to the system.
  void give_back(uintptr_t begin, size_t bytes);

  bool contains(uintptr_t address) const { return address - begin_ < bytes_; }

 private:
  uintptr_t begin_ = 0;
  size_t bytes_ = 0;
  bool accessible_ = false;
  std::map<uintptr_t, size_t> gaps_;  // begin -> bytes
};

}  // namespace swapline::sim
