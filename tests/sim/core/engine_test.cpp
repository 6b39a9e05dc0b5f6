// A copy engine's bookings: one at a time, earliest gap first.
#include "sim/core/engine.h"

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

TEST(Engine, IdleEngineStartsWhenTheCopyIsReady) {
  Engine engine;
  EXPECT_EQ(engine.book(100, 10, 0), 100);
}

TEST(Engine, CopiesReadyTogetherRunOneAfterTheOther) {
  Engine engine;
  EXPECT_EQ(engine.book(0, 10, 0), 0);
  EXPECT_EQ(engine.book(0, 10, 0), 10);
  EXPECT_EQ(engine.book(5, 10, 0), 20);
}

TEST(Engine, LaterEnqueuedCopyThatIsReadyEarlierFillsTheGap) {
  Engine engine;
  EXPECT_EQ(engine.book(100, 50, 0), 100);
  EXPECT_EQ(engine.book(10, 40, 0), 10);
  EXPECT_EQ(engine.book(0, 50, 0), 50);
}

TEST(Engine, GapThatIsTooShortIsPassedOver) {
  Engine engine;
  EXPECT_EQ(engine.book(0, 10, 0), 0);
  EXPECT_EQ(engine.book(20, 10, 0), 20);
  EXPECT_EQ(engine.book(0, 11, 0), 30);
  EXPECT_EQ(engine.book(0, 10, 0), 10);
  EXPECT_EQ(engine.book(0, 1, 0), 41) << "from 0 to 41 everything is taken";
}

TEST(Engine, CopyReadyInsideABookingStartsAtItsEnd) {
  Engine engine;
  engine.book(0, 100, 0);
  EXPECT_EQ(engine.book(99, 1, 0), 100);
  EXPECT_EQ(engine.book(101, 5, 0), 101);
}

TEST(Engine, BookingsBeforeTheHorizonAreForgottenAndLaterOnesKept) {
  Engine engine;
  engine.book(0, 10, 0);
  engine.book(50, 10, 0);
  EXPECT_EQ(engine.book(20, 100, 20), 60);
}

}  // namespace
}  // namespace swapline::sim
