// Pinned host memory of the simulated machine: exact sizes or powers of two, page-aligned, nothing
// cached.
// Not thread-safe.
#pragma once

#include "sim/core/memory_stats.h"

#include <cstddef>
#include <cstdint>
#include <map>

namespace swapline::sim {

class PinnedMemory {
 public:
  // `rounds`: every allocation takes a power of two.
  explicit PinnedMemory(bool accessible, bool rounds = false)
      : accessible_(accessible), rounds_(rounds) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  void* allocate(size_t bytes);  // throws std::bad_alloc
  // Both throw std::invalid_argument when `data` was not allocated here.
  void free(void* data);
  size_t bytes_of(const void* data) const;
  // Where the block begins that holds all `bytes` from `data` on; 0: none does.
  uintptr_t block_of(const void* data, size_t bytes = 1) const;
  bool contains(const void* data, size_t bytes = 1) const { return block_of(data, bytes) != 0; }

  const PinnedMemoryStats& stats() const { return stats_; }
  void reset_peak() { stats_.peak_allocated_bytes = stats_.allocated_bytes; }

 private:
  bool accessible_;
  bool rounds_;
  std::map<uintptr_t, size_t> blocks_;  // begin -> bytes
  PinnedMemoryStats stats_;
};

}  // namespace swapline::sim
