// A device allocator with the rules that the real ones share: sizes rounded to 512 bytes, blocks
// cut from segments, one pool per stream and size class, neighbours joined on free, segments kept
// until memory runs out. Not thread-safe.
#pragma once

#include "sim/core/address_range.h"
#include "sim/core/memory_stats.h"
#include "sim/core/race.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

namespace swapline::sim {

class CachingAllocator {
 public:
  CachingAllocator(size_t capacity_bytes, bool accessible);
  ~CachingAllocator();

  struct Allocation {
    uintptr_t begin = 0;  // 0: out of memory
    bool is_new_segment = false;
  };
  // Does not flush: on failure the caller waits for the device, calls flush_cache() and tries
  // again.
  Allocation allocate(size_t bytes, StreamId stream);
  struct Freed {
    uintptr_t begin = 0;
    size_t bytes = 0;
    StreamId stream = 0;
  };
  // What would be freed: the block's bytes and its stream. Throws std::invalid_argument: not a
  // block.
  Freed describe(uintptr_t begin) const;
  void free(uintptr_t begin);
  // Gives back to the device every segment without a live block; returns their ranges.
  std::vector<Freed> flush_cache();

  // The owner let go but another stream may still use it: counted as held, not as allocated.
  void hold(uintptr_t begin);

  void set_kind(uintptr_t inside, MemoryKind kind);
  void take_away(size_t bytes) { taken_bytes_ = bytes; }

  bool contains(uintptr_t address) const { return range_.contains(address); }
  DeviceMemoryStats& stats() { return stats_; }
  const DeviceMemoryStats& stats() const { return stats_; }
  void reset_peaks();

 private:
  struct Block;
  struct BySize {
    bool operator()(const Block* a, const Block* b) const;
  };
  using Pool = std::set<Block*, BySize>;
  using PoolKey = std::pair<StreamId, bool>;  // stream, is small

  Block* take_cached(size_t bytes, PoolKey key);
  Block* take_segment(size_t bytes, PoolKey key);
  void cut(Block* block, size_t bytes);
  void join(Block* block, Block* neighbour);
  void count(Block* block, bool add);

  AddressRange range_;
  size_t taken_bytes_ = 0;
  std::map<PoolKey, Pool> pools_;                       // free blocks
  std::map<uintptr_t, std::unique_ptr<Block>> blocks_;  // all blocks by address
  DeviceMemoryStats stats_;
};

}  // namespace swapline::sim
