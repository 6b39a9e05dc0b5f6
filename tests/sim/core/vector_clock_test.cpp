// Vector clocks: advance one's own, join others', know nothing of the rest.
#include "sim/core/vector_clock.h"

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

TEST(VectorClock, FreshClockKnowsOfNobody) {
  const VectorClock clock;
  EXPECT_EQ(clock.at(0), 0U);
  EXPECT_EQ(clock.at(1000), 0U);
}

TEST(VectorClock, AdvanceCountsOneActorOnly) {
  VectorClock clock;
  EXPECT_EQ(clock.advance(3), 1U);
  EXPECT_EQ(clock.advance(3), 2U);
  EXPECT_EQ(clock.at(3), 2U);
  EXPECT_EQ(clock.at(2), 0U);
  EXPECT_EQ(clock.at(4), 0U);
}

TEST(VectorClock, JoinTakesTheLaterTickOfEachActor) {
  VectorClock a;
  VectorClock b;
  a.advance(0);
  a.advance(0);
  b.advance(0);
  b.advance(5);
  a.join(b);
  EXPECT_EQ(a.at(0), 2U);
  EXPECT_EQ(a.at(5), 1U);
  EXPECT_EQ(b.at(0), 1U) << "the other clock stays as it was";
}

TEST(VectorClock, JoinOfAShorterClockKeepsTheRest) {
  VectorClock a;
  VectorClock b;
  a.advance(7);
  b.advance(1);
  a.join(b);
  EXPECT_EQ(a.at(7), 1U);
  EXPECT_EQ(a.at(1), 1U);
}

}  // namespace
}  // namespace swapline::sim
