// Pinned host memory of the simulated machine: exact sizes, page-aligned, nothing cached.
// Not thread-safe.
#pragma once

#include "sim/core/memory_stats.h"

#include <cstddef>
#include <cstdint>
#include <map>

namespace swapline::sim {

class PinnedMemory {
 public:
  explicit PinnedMemory(bool accessible) : accessible_(accessible) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  void* allocate(size_t bytes);  // throws std::bad_alloc
  // Both throw std::invalid_argument when `data` was not allocated here.
  void free(void* data);
  size_t bytes_of(const void* data) const;
  bool contains(const void* data) const;

  const PinnedMemoryStats& stats() const { return stats_; }
  void reset_peak() { stats_.peak_allocated_bytes = stats_.allocated_bytes; }

 private:
  bool accessible_;
  std::map<uintptr_t, size_t> blocks_;  // begin -> bytes
  PinnedMemoryStats stats_;
};

}  // namespace swapline::sim
