// The schedule against its formula, written out by hand.
#include "trainer/lr_schedule.h"

#include <cmath>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

LrSchedulerConfig config_of(int64_t warmup_steps,
                            std::optional<double> decay_ratio,
                            const std::string& decay_type,
                            double min_lr_factor = 0) {
  LrSchedulerConfig config;
  config.warmup_steps = warmup_steps;
  config.decay_ratio = decay_ratio;
  config.decay_type = decay_type;
  config.min_lr_factor = min_lr_factor;
  return config;
}

TEST(LrSchedule, WarmUpRisesToOneInEqualSteps) {
  const LrSchedule schedule(config_of(4, std::nullopt, "linear"), 10);
  EXPECT_DOUBLE_EQ(schedule.factor(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.factor(1), 0.5);
  EXPECT_DOUBLE_EQ(schedule.factor(3), 1.0);
}

TEST(LrSchedule, WithoutRatioTheDecayTakesAllStepsAfterTheWarmUp) {
  // w = 2, d = 8, stable = 1: step 2 is stable, step 3 is the first of eight.
  const LrSchedule schedule(config_of(2, std::nullopt, "linear"), 10);
  EXPECT_DOUBLE_EQ(schedule.factor(2), 1.0);
  EXPECT_DOUBLE_EQ(schedule.factor(3), 1.0 - 1.0 / 8);
  EXPECT_DOUBLE_EQ(schedule.factor(9), 1.0 - 7.0 / 8);
}

TEST(LrSchedule, RatioSetsTheLengthOfTheDecay) {
  // w = 2, d = round(10 * 0.4) = 4, stable = 5: steps 2 to 6.
  const LrSchedule schedule(config_of(2, 0.4, "linear"), 10);
  EXPECT_DOUBLE_EQ(schedule.factor(6), 1.0);
  EXPECT_DOUBLE_EQ(schedule.factor(7), 0.75);
  EXPECT_DOUBLE_EQ(schedule.factor(9), 0.25);
}

TEST(LrSchedule, ShapesFollowTheirFormulas) {
  const double progress = 0.75;  // step 9 above
  EXPECT_DOUBLE_EQ(LrSchedule(config_of(2, 0.4, "sqrt"), 10).factor(9), 1 - std::sqrt(progress));
  EXPECT_DOUBLE_EQ(LrSchedule(config_of(2, 0.4, "cosine"), 10).factor(9),
                   0.5 * (1 + std::cos(M_PI * progress)));
}

TEST(LrSchedule, DecayEndsAtTheMinimum) {
  const LrSchedule schedule(config_of(2, 0.4, "linear", 0.1), 10);
  EXPECT_DOUBLE_EQ(schedule.factor(9), 0.1 + 0.9 * 0.25);
  EXPECT_DOUBLE_EQ(schedule.factor(10), 0.1);
  EXPECT_DOUBLE_EQ(schedule.factor(50), 0.1);
}

TEST(LrSchedule, WarmUpLongerThanTheRunIsCut) {
  const LrSchedule schedule(config_of(200, std::nullopt, "linear"), 5);
  EXPECT_DOUBLE_EQ(schedule.factor(0), 0.2);
  EXPECT_DOUBLE_EQ(schedule.factor(4), 1.0);
}

TEST(LrSchedule, DecayThatDoesNotFitBesideTheWarmUpIsCut) {
  const LrSchedule schedule(config_of(6, 0.8, "linear"), 10);
  EXPECT_DOUBLE_EQ(schedule.factor(6), 1.0);
  EXPECT_DOUBLE_EQ(schedule.factor(7), 0.75);
}

TEST(LrSchedule, RatioZeroNeverDecays) {
  const LrSchedule schedule(config_of(1, 0.0, "linear"), 10);
  EXPECT_DOUBLE_EQ(schedule.factor(9), 1.0);
}

}  // namespace
}  // namespace swapline::trainer
