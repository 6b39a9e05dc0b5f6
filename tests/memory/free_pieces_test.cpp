// Best fit, joining and cutting of idle pieces, without a device. Pieces with copies in flight:
// host_pool_test.
#include "swapline/memory/free_pieces.h"

#include <gtest/gtest.h>

namespace swapline::detail {
namespace {

TEST(FreePiecesTest, TakesTheSmallestPieceThatFits) {
  FreePieces free;
  free.add({1000, 100, 1000, {}});
  free.add({2000, 50, 2000, {}});
  free.add({3000, 60, 3000, {}});
  EXPECT_EQ(free.take(55)->begin, 3000U);
  EXPECT_EQ(free.take(55)->begin, 1000U);
  EXPECT_FALSE(free.take(55).has_value());
}

TEST(FreePiecesTest, CutsAndJoinsAgain) {
  FreePieces free;
  free.add({1000, 100, 1000, {}});
  const Piece first = *free.take(30);
  const Piece second = *free.take(30);
  EXPECT_EQ(second.begin, 1030U);
  EXPECT_FALSE(free.take(50).has_value());
  free.add(first);
  EXPECT_FALSE(free.take(50).has_value());
  free.add(second);
  EXPECT_EQ(free.take(100)->begin, 1000U);
}

TEST(FreePiecesTest, NeighboursInTwoSlabsAreNotJoined) {
  FreePieces free;
  free.add({1000, 100, 1000, {}});
  free.add({1100, 100, 1100, {}});
  EXPECT_FALSE(free.take(150).has_value());
}

TEST(FreePiecesTest, TakesTheLargestWithinBounds) {
  FreePieces free;
  free.add({1000, 100, 1000, {}});
  free.add({2000, 200, 2000, {}});
  EXPECT_FALSE(free.take_largest(201, 300).has_value());
  const Piece piece = *free.take_largest(10, 150);
  EXPECT_EQ(piece.begin, 2000U);
  EXPECT_EQ(piece.bytes, 150U);
  EXPECT_EQ(free.take_largest(10, 150)->begin, 1000U);
}

TEST(FreePiecesTest, OnlyWhollyFreeSlabsAreTaken) {
  FreePieces free;
  free.add({1000, 100, 1000, {}});
  free.add({2000, 100, 2000, {}});
  const Piece used = *free.take(40);
  ASSERT_EQ(used.begin, 1000U);
  const auto whole = free.take_whole_slabs({{1000, 100}, {2000, 100}});
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole.front().begin, 2000U);
  EXPECT_FALSE(free.take(70).has_value());
}

}  // namespace
}  // namespace swapline::detail
