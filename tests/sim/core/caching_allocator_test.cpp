// The device allocator: rounding, segments, pools, statistics.
#include "sim/core/caching_allocator.h"

#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

class CachingAllocatorTest : public ::testing::Test {
 protected:
  uintptr_t take(size_t bytes, StreamId stream = 0) {
    const uintptr_t begin = allocator_.allocate(bytes, stream).begin;
    EXPECT_NE(begin, 0U);
    return begin;
  }
  const DeviceMemoryStats& stats() const { return allocator_.stats(); }
  size_t bytes_of(MemoryKind kind) const {
    return stats().bytes_by_kind[static_cast<size_t>(kind)];
  }
  size_t peak_of(MemoryKind kind) const {
    return stats().peak_bytes_by_kind[static_cast<size_t>(kind)];
  }

  CachingAllocator allocator_{100 * kMiB, true};
};

TEST_F(CachingAllocatorTest, SizesAreRoundedTo512Bytes) {
  take(1);
  EXPECT_EQ(stats().allocated_bytes, 512U);
  take(512);
  EXPECT_EQ(stats().allocated_bytes, 1024U);
  take(513);
  EXPECT_EQ(stats().allocated_bytes, 2048U);
}

TEST_F(CachingAllocatorTest, SmallBlocksShareASegmentOf2MiB) {
  const uintptr_t a = take(512);
  const uintptr_t b = take(kMiB);
  EXPECT_EQ(stats().reserved_bytes, 2 * kMiB);
  EXPECT_EQ(b, a + 512);
}

TEST_F(CachingAllocatorTest, MediumBlocksShareASegmentOf20MiB) {
  take(kMiB + 1);
  EXPECT_EQ(stats().reserved_bytes, 20 * kMiB);
  take(9 * kMiB);
  EXPECT_EQ(stats().reserved_bytes, 20 * kMiB);
}

TEST_F(CachingAllocatorTest, LargeBlocksGetTheirOwnSegmentRoundedTo2MiB) {
  take(11 * kMiB + 1);
  EXPECT_EQ(stats().reserved_bytes, 12 * kMiB);
  EXPECT_EQ(stats().num_segments_allocated, 1);
}

TEST_F(CachingAllocatorTest, FreedBlockIsHandedOutAgain) {
  const uintptr_t a = take(4096);
  take(4096);
  allocator_.free(a);
  EXPECT_EQ(stats().allocated_bytes, 4096U);
  EXPECT_FALSE(allocator_.allocate(4096, 0).is_new_segment);
  EXPECT_EQ(stats().num_segments_allocated, 1);
}

TEST_F(CachingAllocatorTest, SmallestBlockThatFitsIsTaken) {
  const uintptr_t large = take(8192);
  take(512);
  const uintptr_t small = take(1024);
  take(512);
  allocator_.free(large);
  allocator_.free(small);
  EXPECT_EQ(take(1024), small);
  EXPECT_EQ(take(1024), large);
}

TEST_F(CachingAllocatorTest, FreedNeighboursAreJoinedInAnyOrder) {
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}};
  for (const auto& order : orders) {
    std::vector<uintptr_t> blocks;
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(take(512 * kKiB));
    }
    const uintptr_t tail = take(512 * kKiB);
    for (const size_t i : order) {
      allocator_.free(blocks[i]);
    }
    const uintptr_t joined = take(kMiB);
    EXPECT_EQ(joined, blocks[0]);
    allocator_.free(joined);
    allocator_.free(tail);
    EXPECT_EQ(stats().reserved_bytes, 2 * kMiB);
  }
}

TEST_F(CachingAllocatorTest, LargeBlockKeepsARemainderThatIsTooSmallToServe) {
  const uintptr_t a = take(12 * kMiB);
  allocator_.free(a);
  EXPECT_EQ(take(11 * kMiB), a);
  EXPECT_EQ(stats().allocated_bytes, 12 * kMiB) << "1 MiB is not cut off a large block";
}

TEST_F(CachingAllocatorTest, StreamsHaveTheirOwnPools) {
  const uintptr_t a = take(4096, 0);
  allocator_.free(a);
  EXPECT_TRUE(allocator_.allocate(4096, 1).is_new_segment);
  EXPECT_EQ(take(4096, 0), a);
}

TEST_F(CachingAllocatorTest, FullDeviceFailsUntilTheCacheIsFlushed) {
  const uintptr_t a = take(60 * kMiB, 0);
  allocator_.free(a);
  EXPECT_EQ(allocator_.allocate(60 * kMiB, 1).begin, 0U) << "cached for another stream";
  const auto flushed = allocator_.flush_cache();
  ASSERT_EQ(flushed.size(), 1U);
  EXPECT_EQ(flushed[0].begin, a);
  EXPECT_EQ(flushed[0].bytes, 60 * kMiB);
  EXPECT_EQ(stats().reserved_bytes, 0U);
  EXPECT_TRUE(allocator_.allocate(60 * kMiB, 1).is_new_segment);
}

TEST_F(CachingAllocatorTest, FlushKeepsSegmentsWithALiveBlock) {
  take(512);
  const uintptr_t b = take(4096);
  allocator_.free(b);
  EXPECT_TRUE(allocator_.flush_cache().empty());
  EXPECT_EQ(stats().reserved_bytes, 2 * kMiB);
}

TEST_F(CachingAllocatorTest, ReservedSegmentsCountAgainstTheCapacity) {
  take(90 * kMiB);
  EXPECT_EQ(allocator_.allocate(11 * kMiB, 0).begin, 0U);
  EXPECT_NE(allocator_.allocate(10 * kMiB, 0).begin, 0U);
}

TEST_F(CachingAllocatorTest, MemoryTakenAwayIsNotThere) {
  allocator_.take_away(80 * kMiB);
  EXPECT_EQ(allocator_.allocate(30 * kMiB, 0).begin, 0U);
  allocator_.take_away(0);
  EXPECT_NE(allocator_.allocate(30 * kMiB, 0).begin, 0U);
}

TEST_F(CachingAllocatorTest, FreeOfWhatIsNotALiveBlockIsRefused) {
  const uintptr_t a = take(4096);
  EXPECT_THROW(allocator_.free(a + 512), std::invalid_argument);
  allocator_.free(a);
  EXPECT_THROW(allocator_.free(a), std::invalid_argument);
}

TEST_F(CachingAllocatorTest, DescribeNamesTheRoundedBytesAndTheStream) {
  const uintptr_t a = take(1000, 3);
  const auto block = allocator_.describe(a);
  EXPECT_EQ(block.begin, a);
  EXPECT_EQ(block.bytes, 1024U);
  EXPECT_EQ(block.stream, 3);
}

TEST_F(CachingAllocatorTest, PeaksStayUntilTheyAreReset) {
  const uintptr_t a = take(60 * kMiB);
  allocator_.free(a);
  allocator_.flush_cache();
  EXPECT_EQ(stats().allocated_bytes, 0U);
  EXPECT_EQ(stats().peak_allocated_bytes, 60 * kMiB);
  EXPECT_EQ(stats().peak_reserved_bytes, 60 * kMiB);
  allocator_.reset_peaks();
  EXPECT_EQ(stats().peak_allocated_bytes, 0U);
  EXPECT_EQ(stats().peak_reserved_bytes, 0U);
}

TEST_F(CachingAllocatorTest, KindsAreCountedNowAndAtThePeak) {
  const uintptr_t parameters = take(2 * kMiB);
  allocator_.set_kind(parameters, MemoryKind::kParameters);
  const uintptr_t inputs = take(4 * kMiB);
  allocator_.set_kind(inputs + 100, MemoryKind::kLayerInputs);
  EXPECT_EQ(peak_of(MemoryKind::kLayerInputs), 4 * kMiB);
  allocator_.free(inputs);
  take(1 * kMiB);
  EXPECT_EQ(bytes_of(MemoryKind::kParameters), 2 * kMiB);
  EXPECT_EQ(bytes_of(MemoryKind::kLayerInputs), 0U);
  EXPECT_EQ(bytes_of(MemoryKind::kOther), 1 * kMiB);
  EXPECT_EQ(peak_of(MemoryKind::kParameters), 2 * kMiB);
  EXPECT_EQ(peak_of(MemoryKind::kLayerInputs), 4 * kMiB);
  EXPECT_EQ(peak_of(MemoryKind::kOther), 0U);
}

TEST_F(CachingAllocatorTest, KindEndsWithTheBlock) {
  const uintptr_t a = take(4096);
  allocator_.set_kind(a, MemoryKind::kGradients);
  allocator_.free(a);
  EXPECT_EQ(take(4096), a);
  EXPECT_EQ(bytes_of(MemoryKind::kGradients), 0U);
  EXPECT_EQ(bytes_of(MemoryKind::kOther), 4096U);
}

TEST_F(CachingAllocatorTest, KindOfUnknownMemoryIsIgnored) {
  const uintptr_t a = take(4096);
  allocator_.set_kind(a - 1, MemoryKind::kGradients);
  allocator_.set_kind(a + 4096, MemoryKind::kGradients);
  EXPECT_EQ(bytes_of(MemoryKind::kGradients), 0U);
}

TEST_F(CachingAllocatorTest, HeldBlockIsNotAllocatedAndNotReused) {
  const uintptr_t a = take(4096);
  allocator_.set_kind(a, MemoryKind::kLayerInputs);
  allocator_.hold(a);
  EXPECT_EQ(stats().allocated_bytes, 0U);
  EXPECT_EQ(stats().held_bytes, 4096U);
  EXPECT_EQ(bytes_of(MemoryKind::kLayerInputs), 0U);
  const uintptr_t b = take(4096);
  EXPECT_NE(b, a);
  allocator_.free(a);
  EXPECT_EQ(stats().held_bytes, 0U);
  EXPECT_EQ(stats().allocated_bytes, 4096U);
  EXPECT_EQ(take(4096), a);
}

TEST_F(CachingAllocatorTest, ThousandsOfRandomStepsLeaveNothingBehind) {
  std::vector<uintptr_t> live;
  uint64_t state = 1;
  const auto draw = [&state] { return (state = state * 6364136223846793005ULL + 1) >> 33; };
  for (int i = 0; i < 20000; ++i) {
    if (!live.empty() && (live.size() > 60 || draw() % 2 == 0)) {
      const size_t pick = draw() % live.size();
      allocator_.free(live[pick]);
      live[pick] = live.back();
      live.pop_back();
    } else {
      const size_t bytes = draw() % 8 == 0 ? draw() % (3 * kMiB) : draw() % (16 * kKiB);
      const uintptr_t begin =
          allocator_.allocate(bytes + 1, static_cast<StreamId>(draw() % 2)).begin;
      if (begin != 0) {
        live.push_back(begin);
      }
    }
  }
  for (const uintptr_t begin : live) {
    allocator_.free(begin);
  }
  EXPECT_EQ(stats().allocated_bytes, 0U);
  allocator_.flush_cache();
  EXPECT_EQ(stats().reserved_bytes, 0U) << "some neighbours were not joined";
}

}  // namespace
}  // namespace swapline::sim
