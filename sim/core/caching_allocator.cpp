#include "sim/core/caching_allocator.h"

#include <algorithm>
#include <stdexcept>

namespace swapline::sim {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;
constexpr size_t kMinBlock = 512;              // sizes are multiples of this
constexpr size_t kSmallBlock = 1 * kMiB;       // up to here a block is small
constexpr size_t kSmallSegment = 2 * kMiB;     // small blocks are cut from segments of this size
constexpr size_t kLargeSegment = 20 * kMiB;    // blocks up to half of this, from such segments
constexpr size_t kSegmentRounding = 2 * kMiB;  // larger ones get their own, rounded to this
// Address space for each byte of capacity: room for gaps, which real devices map around.
constexpr size_t kAddressesPerByte = 4;

size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

size_t segment_bytes(size_t bytes) {
  if (bytes <= kSmallBlock) {
    return kSmallSegment;
  }
  return bytes < kLargeSegment / 2 ? kLargeSegment : round_up(bytes, kSegmentRounding);
}

}  // namespace

struct CachingAllocator::Block {
  uintptr_t begin = 0;
  size_t bytes = 0;
  PoolKey pool;
  bool is_live = false;
  bool is_held = false;
  MemoryKind kind = MemoryKind::kOther;
  Block* before = nullptr;  // neighbours in the same segment
  Block* after = nullptr;
};

bool CachingAllocator::BySize::operator()(const Block* a, const Block* b) const {
  return a->bytes != b->bytes ? a->bytes < b->bytes : a->begin < b->begin;
}

CachingAllocator::CachingAllocator(size_t capacity_bytes, bool accessible)
    : range_(capacity_bytes * kAddressesPerByte, accessible) {
  stats_.capacity_bytes = capacity_bytes;
}

CachingAllocator::~CachingAllocator() = default;

CachingAllocator::Allocation CachingAllocator::allocate(size_t bytes, StreamId stream) {
  bytes = std::max(kMinBlock, round_up(bytes, kMinBlock));
  const PoolKey key{stream, bytes <= kSmallBlock};
  Block* block = take_cached(bytes, key);
  const bool is_new_segment = block == nullptr;
  if (is_new_segment) {
    block = take_segment(bytes, key);
  }
  if (block == nullptr) {
    return {};
  }
  cut(block, bytes);
  block->is_live = true;
  block->kind = MemoryKind::kOther;
  ++stats_.num_allocations;
  count(block, true);
  return {block->begin, is_new_segment};
}

CachingAllocator::Block* CachingAllocator::take_cached(size_t bytes, PoolKey key) {
  Pool& pool = pools_[key];
  Block wanted;
  wanted.bytes = bytes;
  const auto found = pool.lower_bound(&wanted);
  if (found == pool.end()) {
    return nullptr;
  }
  Block* block = *found;
  pool.erase(found);
  return block;
}

CachingAllocator::Block* CachingAllocator::take_segment(size_t bytes, PoolKey key) {
  const size_t size = segment_bytes(bytes);
  if (stats_.reserved_bytes + size + taken_bytes_ > stats_.capacity_bytes) {
    return nullptr;
  }
  const auto begin = range_.take(size);
  if (!begin) {
    return nullptr;
  }
  stats_.reserved_bytes += size;
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  ++stats_.num_segments_allocated;
  auto block = std::make_unique<Block>();
  block->begin = *begin;
  block->bytes = size;
  block->pool = key;
  return (blocks_[*begin] = std::move(block)).get();
}

// Leaves `bytes` in the block and returns the rest to its pool, when the rest is worth keeping.
void CachingAllocator::cut(Block* block, size_t bytes) {
  const size_t rest = block->bytes - bytes;
  const bool worth = block->pool.second ? rest >= kMinBlock : rest > kSmallBlock;
  if (!worth) {
    return;
  }
  auto upper = std::make_unique<Block>();
  upper->begin = block->begin + bytes;
  upper->bytes = rest;
  upper->pool = block->pool;
  upper->before = block;
  upper->after = block->after;
  if (block->after != nullptr) {
    block->after->before = upper.get();
  }
  block->after = upper.get();
  block->bytes = bytes;
  pools_[block->pool].insert(upper.get());
  blocks_[upper->begin] = std::move(upper);
}

CachingAllocator::Freed CachingAllocator::describe(uintptr_t begin) const {
  const auto found = blocks_.find(begin);
  if (found == blocks_.end() || !found->second->is_live) {
    throw std::invalid_argument("free of device memory that is not a live block");
  }
  return {begin, found->second->bytes, found->second->pool.first};
}

void CachingAllocator::free(uintptr_t begin) {
  describe(begin);
  Block* block = blocks_.at(begin).get();
  count(block, false);
  block->is_live = false;
  block->is_held = false;
  if (block->after != nullptr && !block->after->is_live) {
    pools_[block->pool].erase(block->after);
    join(block, block->after);
  }
  if (block->before != nullptr && !block->before->is_live) {
    Block* before = block->before;
    pools_[block->pool].erase(before);
    join(before, block);
    block = before;
  }
  pools_[block->pool].insert(block);
}

// Takes `upper`, which follows `block`, into it.
void CachingAllocator::join(Block* block, Block* upper) {
  block->bytes += upper->bytes;
  block->after = upper->after;
  if (upper->after != nullptr) {
    upper->after->before = block;
  }
  blocks_.erase(upper->begin);
}

std::vector<CachingAllocator::Freed> CachingAllocator::flush_cache() {
  std::vector<Freed> flushed;
  for (auto& [key, pool] : pools_) {
    for (auto it = pool.begin(); it != pool.end();) {
      Block* block = *it;
      if (block->before != nullptr || block->after != nullptr) {
        ++it;
        continue;
      }
      it = pool.erase(it);
      flushed.push_back({block->begin, block->bytes, key.first});
      stats_.reserved_bytes -= block->bytes;
      range_.give_back(block->begin, block->bytes);
      blocks_.erase(block->begin);
    }
  }
  return flushed;
}

void CachingAllocator::hold(uintptr_t begin) {
  describe(begin);
  Block* block = blocks_.at(begin).get();
  count(block, false);
  block->is_held = true;
  count(block, true);
}

void CachingAllocator::set_kind(uintptr_t inside, MemoryKind kind) {
  auto found = blocks_.upper_bound(inside);
  if (found == blocks_.begin()) {
    return;
  }
  Block* block = std::prev(found)->second.get();
  if (!block->is_live || block->is_held || inside >= block->begin + block->bytes ||
      block->kind == kind) {
    return;
  }
  // A block named right after the peak it made is counted there under its name.
  if (stats_.allocated_bytes == stats_.peak_allocated_bytes) {
    stats_.peak_bytes_by_kind = stats_.bytes_by_kind;
    stats_.peak_bytes_by_kind[static_cast<size_t>(block->kind)] -= block->bytes;
    stats_.peak_bytes_by_kind[static_cast<size_t>(kind)] += block->bytes;
  }
  stats_.bytes_by_kind[static_cast<size_t>(block->kind)] -= block->bytes;
  stats_.bytes_by_kind[static_cast<size_t>(kind)] += block->bytes;
  block->kind = kind;
}

void CachingAllocator::count(Block* block, bool add) {
  if (block->is_held) {
    stats_.held_bytes += add ? block->bytes : -block->bytes;
    return;
  }
  stats_.allocated_bytes += add ? block->bytes : -block->bytes;
  stats_.bytes_by_kind[static_cast<size_t>(block->kind)] += add ? block->bytes : -block->bytes;
  if (stats_.allocated_bytes > stats_.peak_allocated_bytes) {
    stats_.peak_allocated_bytes = stats_.allocated_bytes;
    stats_.peak_bytes_by_kind = stats_.bytes_by_kind;
  }
}

void CachingAllocator::reset_peaks() {
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
  stats_.peak_reserved_bytes = stats_.reserved_bytes;
  stats_.peak_bytes_by_kind = stats_.bytes_by_kind;
}

}  // namespace swapline::sim
