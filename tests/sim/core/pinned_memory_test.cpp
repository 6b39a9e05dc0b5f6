// Pinned host memory: exact bytes, addresses inside a block, misuse.
#include "sim/core/pinned_memory.h"

#include <cstring>
#include <stdexcept>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

TEST(PinnedMemory, BytesAreCountedExactly) {
  PinnedMemory pinned(true);
  void* a = pinned.allocate(1000);
  void* b = pinned.allocate(3);
  EXPECT_EQ(pinned.stats().allocated_bytes, 1003U);
  EXPECT_EQ(pinned.stats().num_allocations, 2);
  EXPECT_EQ(pinned.bytes_of(a), 1000U);
  pinned.free(a);
  pinned.free(b);
  EXPECT_EQ(pinned.stats().allocated_bytes, 0U);
  EXPECT_EQ(pinned.stats().peak_allocated_bytes, 1003U);
  pinned.reset_peak();
  EXPECT_EQ(pinned.stats().peak_allocated_bytes, 0U);
}

TEST(PinnedMemory, AddressesInsideABlockArePinned) {
  PinnedMemory pinned(true);
  auto* data = static_cast<char*>(pinned.allocate(4096));
  std::memset(data, 1, 4096);
  int on_stack = 0;
  EXPECT_TRUE(pinned.contains(data));
  EXPECT_TRUE(pinned.contains(data + 4095));
  EXPECT_FALSE(pinned.contains(data + 4096));
  EXPECT_FALSE(pinned.contains(data - 1));
  EXPECT_FALSE(pinned.contains(&on_stack));
  pinned.free(data);
  EXPECT_FALSE(pinned.contains(data));
}

TEST(PinnedMemory, RangeIsPinnedWhenOneBlockHoldsAllOfIt) {
  PinnedMemory pinned(true);
  auto* data = static_cast<char*>(pinned.allocate(4096));
  const auto begin = reinterpret_cast<uintptr_t>(data);
  EXPECT_EQ(pinned.block_of(data, 4096), begin);
  EXPECT_EQ(pinned.block_of(data + 96, 4000), begin);
  EXPECT_EQ(pinned.block_of(data + 96, 4001), 0U);
  EXPECT_EQ(pinned.block_of(data + 4096), 0U);
  pinned.free(data);
  EXPECT_EQ(pinned.block_of(data), 0U);
}

TEST(PinnedMemory, FreeOfWhatIsNotABlockIsRefused) {
  PinnedMemory pinned(true);
  auto* data = static_cast<char*>(pinned.allocate(4096));
  EXPECT_THROW(pinned.free(data + 1), std::invalid_argument);
  pinned.free(data);
  EXPECT_THROW(pinned.free(data), std::invalid_argument);
}

}  // namespace
}  // namespace swapline::sim
