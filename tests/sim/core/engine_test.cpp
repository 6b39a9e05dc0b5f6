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

TEST(Engine, PiecesFillEveryGapThereIs) {
  Engine engine;
  EXPECT_EQ(engine.book_pieces(5, 0, 0), 5) << "nothing to move";
  engine.book(10, 10, 0);
  engine.book(30, 10, 0);
  EXPECT_EQ(engine.book_pieces(5, 25, 0), 50) << "5 to 10, 20 to 30, 40 to 50";
  EXPECT_EQ(engine.book_pieces(0, 5, 0), 5);
  EXPECT_EQ(engine.book(0, 1, 0), 50) << "from 0 to 50 everything is taken";
}

TEST(Engine, PiecesReadyInsideABookingStartAtItsEnd) {
  Engine engine;
  engine.book(0, 100, 0);
  EXPECT_EQ(engine.book_pieces(50, 10, 0), 110);
}

TEST(Engine, BookingsBeforeTheHorizonAreForgottenAndLaterOnesKept) {
  Engine engine;
  engine.book(0, 10, 0);
  engine.book(50, 10, 0);
  EXPECT_EQ(engine.book(20, 100, 20), 60);
}

}  // namespace
}  // namespace swapline::sim
