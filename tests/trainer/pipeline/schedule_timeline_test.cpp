// Faulty schedules are caught with their place, and sound ones take the time of the textbook.
#include "trainer/pipeline/schedule_timeline.h"

#include "tests/support/errors.h"
#include "trainer/pipeline/schedule_builders.h"

#include <stdexcept>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

using ::swapline::testing::message_of;
using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kForward = 1;
constexpr double kBackward = 2;
constexpr double kPair = 2.5;

std::string fault_of(const Schedule& schedule) {
  EXPECT_THROW(check(schedule), std::logic_error);
  EXPECT_THROW(analyse(schedule, 1, 1, 1), std::logic_error);
  return message_of([&] { check(schedule); });
}

Schedule two_by_two() {
  return make_schedule({"1F1B", 2, 0, 2, false});
}

TEST(ScheduleCheck, MissingForwardIsNamed) {
  Schedule schedule = two_by_two();
  // The last forward and its backward: else the backward is the first fault.
  std::erase(schedule.actions[1], Action::backward_of({1, 1}));
  std::erase(schedule.actions[1], Action::forward_of({1, 1}));
  EXPECT_EQ(fault_of(schedule), "schedule 1F1B: F1.1 is missing");
}

TEST(ScheduleCheck, MissingBackwardIsNamed) {
  Schedule schedule = two_by_two();
  std::erase(schedule.actions[0], Action::backward_of({0, 0}));
  EXPECT_EQ(fault_of(schedule), "schedule 1F1B: B0.0 is missing");
}

TEST(ScheduleCheck, TwiceIsNamedWithThePlace) {
  Schedule schedule = two_by_two();
  schedule.actions[0].push_back(Action::backward_of({0, 1}));
  EXPECT_EQ(fault_of(schedule), "schedule 1F1B: rank 0, action 4 (B0.1): it is there twice");
  schedule.actions[0].back() = Action::forward_of({0, 0});
  EXPECT_EQ(fault_of(schedule), "schedule 1F1B: rank 0, action 4 (F0.0): it is there twice");
}

TEST(ScheduleCheck, WrongRankIsNamedWithTheRightOne) {
  Schedule schedule = two_by_two();
  schedule.actions[1][0] = Action::forward_of({0, 0});
  EXPECT_EQ(fault_of(schedule), "schedule 1F1B: rank 1, action 0 (F0.0): stage 0 is on rank 0");
}

TEST(ScheduleCheck, StageOrMicrobatchThatIsNotThereIsNamed) {
  Schedule schedule = two_by_two();
  schedule.actions[1][0] = Action::forward_of({1, 2});
  EXPECT_EQ(fault_of(schedule),
            "schedule 1F1B: rank 1, action 0 (F1.2): there are only 2 stages and 2 micro-batches");
  schedule.actions[1][0] = Action::forward_of({2, 0});
  EXPECT_THAT(fault_of(schedule), HasSubstr("(F2.0): there are only 2 stages"));
  schedule.actions[1][0] = Action::backward_of({-1, 0});
  EXPECT_THAT(fault_of(schedule), HasSubstr("(B-1.0): there are only 2 stages"));
}

TEST(ScheduleCheck, BackwardBeforeItsForwardIsNamed) {
  Schedule schedule = two_by_two();
  std::swap(schedule.actions[1][0], schedule.actions[1][1]);
  EXPECT_EQ(fault_of(schedule),
            "schedule 1F1B: rank 1, action 0 (B1.0): the backward comes before its forward");
}

TEST(ScheduleCheck, ForwardAgainstItsOwnBackwardIsNamed) {
  Schedule schedule{"by hand", 1, 1, 1, {0}, {{Action::overlapped({0, 0}, {0, 0})}}};
  EXPECT_THAT(fault_of(schedule), HasSubstr("the backward comes before its forward"));
}

TEST(ScheduleCheck, RanksThatWaitForEachOtherAreNamed) {
  Schedule schedule = two_by_two();
  // Rank 0 wants its first gradient before it gives the second activation; rank 1 wants both
  // activations before it gives a gradient.
  schedule.actions[0] = {Action::forward_of({0, 0}),
                         Action::backward_of({0, 0}),
                         Action::forward_of({0, 1}),
                         Action::backward_of({0, 1})};
  schedule.actions[1] = {Action::forward_of({1, 0}),
                         Action::forward_of({1, 1}),
                         Action::backward_of({1, 0}),
                         Action::backward_of({1, 1})};
  EXPECT_EQ(fault_of(schedule),
            "schedule 1F1B: the ranks wait for each other for ever: rank 0, action 1 (B0.0) waits "
            "for B1.0; rank 1, action 1 (F1.1) waits for F0.1");
}

TEST(ScheduleCheck, OverlappedActionWaitsForTheInputsOfBoth) {
  Schedule schedule = two_by_two();
  // Apart, F0.1 would free rank 1; together with B0.0 it waits for what rank 1 gives after it.
  schedule.actions[0] = {
      Action::forward_of({0, 0}), Action::overlapped({0, 1}, {0, 0}), Action::backward_of({0, 1})};
  schedule.actions[1] = {
      Action::forward_of({1, 0}), Action::overlapped({1, 1}, {1, 0}), Action::backward_of({1, 1})};
  EXPECT_THAT(fault_of(schedule), HasSubstr("rank 0, action 1 (F0.1+B0.0) waits for B1.0"));
}

TEST(ScheduleCheck, SizesThatDoNotFitAreNamed) {
  Schedule schedule = two_by_two();
  schedule.rank_of_stage.pop_back();
  EXPECT_EQ(fault_of(schedule), "schedule 1F1B: found the ranks of 1 stages, there are 2");
  schedule = two_by_two();
  schedule.actions.pop_back();
  EXPECT_EQ(fault_of(schedule), "schedule 1F1B: found the actions of 1 ranks, there are 2");
  schedule.num_microbatches = 0;
  EXPECT_EQ(fault_of(schedule), "schedule 1F1B: it has no ranks, no stages or no micro-batches");
}

TEST(ScheduleShape, BubbleIsTheIdleShareOfEachRank) {
  // Two ranks, one micro-batch: each works 3 of 6; two: 6 of 9.
  const ScheduleShape one = analyse(make_schedule({"1F1B", 2, 0, 1, false}), 1, 2, 3);
  EXPECT_DOUBLE_EQ(one.makespan, 6);
  EXPECT_THAT(one.bubble_share, ElementsAre(0.5, 0.5));
  const ScheduleShape two = analyse(make_schedule({"1F1B", 2, 0, 2, false}), 1, 2, 3);
  EXPECT_DOUBLE_EQ(two.makespan, 9);
  EXPECT_THAT(two.bubble_share, Each(DoubleEq(1.0 / 3)));
}

TEST(ScheduleShape, PairKeepsBothOfItsMicrobatchesInFlight) {
  EXPECT_THAT(analyse(make_schedule({"1F1B", 1, 0, 5, true}), 1, 2, 3).in_flight_of_stage,
              ElementsAre(2));
  EXPECT_THAT(analyse(make_schedule({"1F1B", 1, 0, 5, false}), 1, 2, 3).in_flight_of_stage,
              ElementsAre(1));
}

TEST(ScheduleShape, DualPipeVKeepsAsMuchInFlightOnEachRank) {
  // Half-size stages: 2P + 1 of them are about what rank 0 of 1F1B keeps, P whole ones.
  const ScheduleShape shape = analyse(make_schedule({"DualPipeV", 4, 0, 20, false}), 1, 2, 3);
  EXPECT_THAT(shape.in_flight_of_rank, Each(9));
  EXPECT_THAT(shape.in_flight_of_stage, ElementsAre(8, 7, 6, 5, 4, 3, 2, 1));
}

// With one forward ahead per rank, as without overlap, each pair waits for the pair of the next
// rank, which waits for the pair before on this one: every rank stands still half the time.
TEST(ScheduleShape, OneForwardAheadPerRankIsTooFewForPairs) {
  constexpr int kMicrobatches = 20;
  Schedule lean{"one ahead", 2, 2, kMicrobatches, {0, 1}, {{}, {}}};
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<Action>& actions = lean.actions[static_cast<size_t>(rank)];
    const int ahead = 2 - rank;
    for (int m = 0; m < kMicrobatches + ahead; ++m) {
      if (m < ahead) {
        actions.push_back(Action::forward_of({rank, m}));
      } else if (m < kMicrobatches) {
        actions.push_back(Action::overlapped({rank, m}, {rank, m - ahead}));
      } else {
        actions.push_back(Action::backward_of({rank, m - ahead}));
      }
    }
  }
  const double apart =
      analyse(make_schedule({"1F1B", 2, 0, kMicrobatches, false}), kForward, kBackward, kPair)
          .makespan;
  const double two_ahead =
      analyse(make_schedule({"1F1B", 2, 0, kMicrobatches, true}), kForward, kBackward, kPair)
          .makespan;
  EXPECT_GT(analyse(lean, kForward, kBackward, kPair).makespan, 1.5 * apart);
  EXPECT_LT(two_ahead, apart);
}

TEST(ScheduleShape, DualPipeVHasASmallerBubbleThan1F1B) {
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (const double backward : {1.0, 2.0, 3.0}) {
      const int microbatches = 3 * ranks;
      // Its stages are half the size.
      const double dual = analyse(make_schedule({"DualPipeV", ranks, 0, microbatches, false}),
                                  kForward / 2,
                                  backward / 2,
                                  kPair)
                              .makespan;
      const double plain =
          analyse(make_schedule({"1F1B", ranks, 0, microbatches, false}), kForward, backward, kPair)
              .makespan;
      EXPECT_LT(dual, plain) << ranks << " ranks, backward " << backward;
      const double work = microbatches * (kForward + backward);
      EXPECT_LT(dual - work, 0.8 * (plain - work)) << ranks << " ranks, backward " << backward;
    }
  }
}

}  // namespace
}  // namespace swapline::trainer
