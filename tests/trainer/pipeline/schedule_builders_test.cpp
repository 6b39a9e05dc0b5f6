// The built-in schedules against lists written out by hand, and every request that is refused.
#include "trainer/pipeline/schedule_builders.h"

#include "tests/support/errors.h"

#include <algorithm>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

using ::swapline::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string written(const ScheduleRequest& request) {
  return to_string(make_schedule(request));
}

std::string refusal_of(const ScheduleRequest& request) {
  EXPECT_THROW(make_schedule(request), std::invalid_argument);
  return message_of([&] { make_schedule(request); });
}

TEST(ScheduleBuilders, WithoutAPipelineEachBackwardFollowsItsForward) {
  EXPECT_EQ(written({"1F1B", 1, 0, 3, false}), "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2\n");
  EXPECT_EQ(written({"1F1B", 1, 0, 3, true}), "F0.0 F0.1+B0.0 F0.2+B0.1 B0.2\n");
}

TEST(ScheduleBuilders, OneRankIsNoPipelineWhateverTheName) {
  for (const std::string& name : schedule_names()) {
    const Schedule schedule = make_schedule({name, 1, 0, 1, false});
    EXPECT_EQ(schedule.name, "none");
    EXPECT_EQ(schedule.num_stages, 1);
    EXPECT_EQ(to_string(schedule), "F0.0 B0.0\n");
  }
  EXPECT_EQ(written({"none", 1, 0, 1, true}), "F0.0 B0.0\n");
}

TEST(ScheduleBuilders, GPipeRunsAllForwardsThenAllBackwardsInTheSameOrder) {
  EXPECT_EQ(written({"GPipe", 2, 0, 3, false}),
            "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2\n"
            "F1.0 F1.1 F1.2 B1.0 B1.1 B1.2\n");
}

TEST(ScheduleBuilders, OneForwardOneBackward) {
  EXPECT_EQ(written({"1F1B", 3, 0, 4, false}),
            "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3\n"
            "F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3\n"
            "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3\n");
}

TEST(ScheduleBuilders, OneForwardOneBackwardWithOverlap) {
  EXPECT_EQ(written({"1F1B", 2, 0, 5, true}),
            "F0.0 F0.1 F0.2 F0.3+B0.0 F0.4+B0.1 B0.2 B0.3 B0.4\n"
            "F1.0 F1.1+B1.0 F1.2+B1.1 F1.3+B1.2 F1.4+B1.3 B1.4\n");
}

TEST(ScheduleBuilders, FewerMicrobatchesThanRanksAreAllForwardFirst) {
  EXPECT_EQ(written({"1F1B", 3, 0, 1, true}), "F0.0 B0.0\nF1.0 B1.0\nF2.0 B2.0\n");
}

TEST(ScheduleBuilders, Interleaved) {
  const Schedule schedule = make_schedule({"Interleaved1F1B", 2, 0, 4, false});
  EXPECT_THAT(schedule.rank_of_stage, ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(to_string(schedule),
            "F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3\n"
            "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3\n");
}

TEST(ScheduleBuilders, InterleavedWithOverlap) {
  EXPECT_EQ(written({"Interleaved1F1B", 2, 0, 2, true}),
            "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1\n"
            "F1.0 F1.1 F3.0 F3.1+B3.0 B3.1 B1.0 B1.1\n");
}

TEST(ScheduleBuilders, InterleavedSpreadsWhatIsLeftOverOverTheGroups) {
  const Schedule schedule = make_schedule({"Interleaved1F1B", 2, 0, 5, false});
  // Five on two ranks: a group of three and a group of two.
  EXPECT_THAT(to_string(schedule),
              ::testing::StartsWith("F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 B2.0 F0.3 B2.1 F0.4"));
}

TEST(ScheduleBuilders, DualPipeVWithOverlap) {
  const Schedule schedule = make_schedule({"DualPipeV", 2, 0, 4, true});
  EXPECT_THAT(schedule.rank_of_stage, ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(to_string(schedule),
            "F0.0 F0.1 F0.2 F3.0 B3.0 F3.1 F0.3+B3.1 F3.2+B0.0 B3.2 F3.3+B0.1 B3.3 B0.2 B0.3\n"
            "F1.0 F2.0 F1.1 F2.1 F1.2 B2.0 F2.2+B1.0 F1.3+B2.1 F2.3+B1.1 B2.2 B1.2 B2.3 B1.3\n");
}

TEST(ScheduleBuilders, DualPipeVWithoutOverlapIsTheSameListWithItsPairsApart) {
  std::string apart = written({"DualPipeV", 4, 0, 9, true});
  std::replace(apart.begin(), apart.end(), '+', ' ');
  EXPECT_EQ(written({"DualPipeV", 4, 0, 9, false}), apart);
}

TEST(ScheduleBuilders, UnknownNameIsRefusedNamingTheKnown) {
  EXPECT_EQ(refusal_of({"1f1b", 2, 0, 4, false}),
            "--parallelism.pipeline-parallel-schedule: found \"1f1b\", allowed is one of: GPipe, "
            "1F1B, Interleaved1F1B, DualPipeV");
  EXPECT_THAT(refusal_of({"none", 2, 0, 4, false}), HasSubstr("found \"none\""));
  EXPECT_THAT(refusal_of({"ZB", 1, 0, 4, false}), HasSubstr("found \"ZB\""));
}

TEST(ScheduleBuilders, NoRanksIsRefused) {
  EXPECT_EQ(refusal_of({"1F1B", 0, 0, 4, false}),
            "--parallelism.pipeline-parallel-degree: found 0, allowed is 1 (no pipeline) or more");
}

TEST(ScheduleBuilders, NoMicrobatchesIsRefused) {
  EXPECT_EQ(refusal_of({"1F1B", 2, 0, 0, false}),
            "1F1B on 2 ranks: found 0 micro-batches, allowed is 1 or more: lower "
            "--parallelism.pipeline-parallel-microbatch-size or raise --training.local-batch-size");
}

TEST(ScheduleBuilders, DualPipeVNeedsTwoMicrobatchesPerRank) {
  EXPECT_EQ(refusal_of({"DualPipeV", 4, 0, 7, false}),
            "DualPipeV on 4 ranks: found 7 micro-batches, allowed is 8 or more: lower "
            "--parallelism.pipeline-parallel-microbatch-size or raise --training.local-batch-size");
  EXPECT_NO_THROW(make_schedule({"DualPipeV", 4, 0, 8, false}));
}

TEST(ScheduleBuilders, WrongStagesPerRankAreRefused) {
  EXPECT_EQ(refusal_of({"1F1B", 2, 3, 4, false}),
            "1F1B on 2 ranks: found 3 stages per rank, allowed is 1: turn "
            "--parallelism.pipeline-parallel-layers-per-stage or "
            "--parallelism.pipeline-parallel-schedule");
  EXPECT_THAT(refusal_of({"GPipe", 2, 2, 4, false}), HasSubstr("allowed is 1: turn"));
  EXPECT_THAT(refusal_of({"Interleaved1F1B", 2, 1, 4, false}), HasSubstr("allowed is 2 or more"));
  EXPECT_THAT(refusal_of({"Interleaved1F1B", 2, -1, 4, false}), HasSubstr("found -1"));
  EXPECT_THAT(refusal_of({"DualPipeV", 2, 3, 4, false}), HasSubstr("allowed is 2: turn"));
  EXPECT_THAT(refusal_of({"Interleaved1F1B", 1, 2, 4, false}),
              HasSubstr("or --parallelism.pipeline-parallel-degree"));
}

TEST(ScheduleBuilders, GPipeWithOverlapIsRefused) {
  EXPECT_THAT(refusal_of({"GPipe", 2, 0, 4, true}), HasSubstr("--parallelism.moe-fb-overlap"));
}

}  // namespace
}  // namespace swapline::trainer
