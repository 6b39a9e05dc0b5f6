// The slabs of a HostPool: how large they are made, and whether the machine lets us pin them.
// Inside HostPool only; not thread-safe.
#pragma once

#include "swapline/memory/host_pool.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

namespace swapline::detail {

inline constexpr size_t kPieceAlignment = 512;

inline size_t align_piece(size_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

std::string readable_bytes(size_t bytes);

class PinnedSlabs {
 public:
  PinnedSlabs(c10::Device device, HostPoolOptions options);

  c10::Device device() const { return device_; }
  size_t slab_bytes() const { return options_.slab_bytes; }
  // Pins a slab of at least `bytes` (aligned). Returns its first byte and its size.
  // Throws: HostMemoryError; nothing is changed then.
  std::pair<uintptr_t, size_t> add(size_t bytes);
  void remove(uintptr_t slab);
  // The device has failed. Giving pinned memory back throws then, in torch's deleters, which may
  // not throw: it stays the process's.
  void abandon() noexcept;
  uintptr_t slab_of(uintptr_t data) const;
  const c10::Storage& storage_of(uintptr_t slab) const { return slabs_.at(slab); }
  // What was removed goes back to the system.
  void empty_cache();
  const std::map<uintptr_t, size_t>& sizes() const { return sizes_; }

  // Pinned figures of HostPoolStats; the pool fills in the requested ones.
  HostPoolStats stats;

 private:
  // How much of the wish is granted: a size from `least` to `wish`. Throws: HostMemoryError.
  size_t grant(size_t least, size_t wish) const;
  size_t wished_bytes(size_t bytes);
  bool rounds(size_t bytes);
  // Throws HostMemoryError; `size` is what was granted.
  c10::DataPtr pin(size_t least, size_t& size);

  c10::Device device_;
  HostPoolOptions options_;
  c10::Allocator* allocator_;
  std::optional<bool> allocator_rounds_;
  std::map<uintptr_t, c10::Storage> slabs_;
  std::map<uintptr_t, size_t> sizes_;
};

}  // namespace swapline::detail
