// Names, transfers and look-ahead of schedules written out by hand.
#include "trainer/pipeline/schedule.h"

#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Two ranks, four stages in a V, one micro-batch: stages 1 and 2 are neighbours on rank 1.
Schedule v_of_two_ranks() {
  Schedule schedule{"by hand", 2, 4, 1, {0, 1, 1, 0}, {}};
  schedule.actions = {{Action::forward_of({0, 0}),
                       Action::forward_of({3, 0}),
                       Action::backward_of({3, 0}),
                       Action::backward_of({0, 0})},
                      {Action::forward_of({1, 0}),
                       Action::forward_of({2, 0}),
                       Action::backward_of({2, 0}),
                       Action::backward_of({1, 0})}};
  return schedule;
}

TEST(Schedule, ActionsAreNamedByDirectionStageAndMicrobatch) {
  EXPECT_EQ(to_string(Action::forward_of({0, 3})), "F0.3");
  EXPECT_EQ(to_string(Action::backward_of({2, 1})), "B2.1");
  EXPECT_EQ(to_string(Action::overlapped({0, 3}, {2, 1})), "F0.3+B2.1");
}

TEST(Schedule, IsWrittenWithOneLinePerRank) {
  EXPECT_EQ(to_string(v_of_two_ranks()), "F0.0 F3.0 B3.0 B0.0\nF1.0 F2.0 B2.0 B1.0\n");
}

TEST(Schedule, ForwardNeedsTheOutputOfTheStageBefore) {
  const Transfer expected{Transfer::Kind::kActivation, 2, 3, 0, 1, 0};
  EXPECT_THAT(incoming(v_of_two_ranks(), Action::forward_of({3, 0})), ElementsAre(expected));
  EXPECT_THAT(outgoing(v_of_two_ranks(), Action::forward_of({2, 0})), ElementsAre(expected));
}

TEST(Schedule, BackwardNeedsTheGradientOfTheStageAfter) {
  const Transfer expected{Transfer::Kind::kGradient, 3, 2, 0, 0, 1};
  EXPECT_THAT(incoming(v_of_two_ranks(), Action::backward_of({2, 0})), ElementsAre(expected));
  EXPECT_THAT(outgoing(v_of_two_ranks(), Action::backward_of({3, 0})), ElementsAre(expected));
}

TEST(Schedule, OverlappedActionNeedsAndGivesBoth) {
  const Action action = Action::overlapped({1, 5}, {2, 4});
  EXPECT_THAT(incoming(v_of_two_ranks(), action),
              ElementsAre(Transfer{Transfer::Kind::kActivation, 0, 1, 5, 0, 1},
                          Transfer{Transfer::Kind::kGradient, 3, 2, 4, 0, 1}));
  // Both outputs stay on rank 1: at the turn of the V.
  EXPECT_THAT(outgoing(v_of_two_ranks(), action), IsEmpty());
}

TEST(Schedule, NeighboursOnOneRankTransferNothing) {
  EXPECT_THAT(incoming(v_of_two_ranks(), Action::forward_of({2, 0})), IsEmpty());
  EXPECT_THAT(incoming(v_of_two_ranks(), Action::backward_of({1, 0})), IsEmpty());
}

TEST(Schedule, EndsOfThePipelineTransferNothing) {
  EXPECT_THAT(incoming(v_of_two_ranks(), Action::forward_of({0, 0})), IsEmpty());
  EXPECT_THAT(incoming(v_of_two_ranks(), Action::backward_of({3, 0})), IsEmpty());
  EXPECT_THAT(outgoing(v_of_two_ranks(), Action::forward_of({3, 0})), IsEmpty());
  EXPECT_THAT(outgoing(v_of_two_ranks(), Action::backward_of({0, 0})), IsEmpty());
}

TEST(Schedule, NextBackwardIsTheFirstAfterThePlace) {
  const Schedule schedule = v_of_two_ranks();
  EXPECT_EQ(next_backward_after(schedule, 0, 0), &schedule.actions[0][2]);
  EXPECT_EQ(next_backward_after(schedule, 1, 2), &schedule.actions[1][3]);
  EXPECT_EQ(next_backward_after(schedule, 1, 3), nullptr);
}

TEST(Schedule, NextBackwardMayBeOverlapped) {
  Schedule schedule{"by hand", 1, 1, 2, {0}, {}};
  schedule.actions = {{Action::forward_of({0, 0}),
                       Action::overlapped({0, 1}, {0, 0}),
                       Action::backward_of({0, 1})}};
  EXPECT_EQ(next_backward_after(schedule, 0, 0), &schedule.actions[0][1]);
}

TEST(Schedule, NextBackwardOfARankThatIsNotThereThrows) {
  EXPECT_THROW(next_backward_after(v_of_two_ranks(), 2, 0), std::out_of_range);
  EXPECT_THROW(next_backward_after(v_of_two_ranks(), -1, 0), std::out_of_range);
}

TEST(Schedule, ForwardsAloneKeepTheirOrder) {
  Schedule schedule;
  schedule.num_ranks = 2;
  schedule.num_stages = 2;
  schedule.rank_of_stage = {0, 1};
  schedule.actions = {
      {Action::forward_of({0, 0}), Action::overlapped({0, 1}, {0, 0}), Action::backward_of({0, 1})},
      {Action::forward_of({1, 0}),
       Action::backward_of({1, 0}),
       Action::overlapped({1, 1}, {1, 1})}};
  EXPECT_EQ(to_string(forwards_of(schedule)), "F0.0 F0.1\nF1.0 F1.1\n");
}

}  // namespace
}  // namespace swapline::trainer
