// Mixture of experts seen from outside: experts shared by two devices, all-to-alls hidden behind
// the other micro-batch, multi-token prediction; with swap and without.
#include "tests/trainer/program_expectations.h"

#include <cmath>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kSmall =
    "train --model.name deepseek_v3 --training.steps 3 --training.seq-len 32 "
    "--model.num-layers 4 ";
const std::string kTwoShare = "--parallelism.expert-parallel-degree 2 ";
const std::string kOverlap = "--parallelism.moe-fb-overlap ";
const std::string kNoRecompute = "--activation-checkpoint.mode none ";
const std::string kOneByOne = "--training.local-batch-size 1 --training.global-batch-size 16 ";
const std::string kTwoStages =
    "--training.local-batch-size 8 --parallelism.pipeline-parallel-degree 2 ";
const std::string kDualPipeV = "--parallelism.pipeline-parallel-schedule DualPipeV ";

// Sums of fp32 in another order: a few units in the last place (6e-8) of each, through three steps.
constexpr double kRoundingOfSums = 1e-5;

void expect_losses_within_rounding(const ProgramRun& run, const ProgramRun& other) {
  ASSERT_EQ(run.summary["steps"].size(), other.summary["steps"].size());
  for (size_t step = 0; step < run.summary["steps"].size(); ++step) {
    for (const char* name : {"loss", "grad_norm"}) {
      const auto found = run.summary["steps"][step][name].get<double>();
      const auto wanted = other.summary["steps"][step][name].get<double>();
      EXPECT_NEAR(found, wanted, std::abs(wanted) * kRoundingOfSums) << name << " of step " << step;
    }
  }
}

// What may not change a bit of what `schedule` computes.
void expect_same_losses_with_every_option(const std::string& schedule) {
  const std::string shared = kSmall + kTwoShare + schedule;
  const ProgramRun plain = run_program(shared);
  for (const std::string& options :
       {kStrictSwap, kOverlap + kStrictSwap, kOverlap + kAutoSwap + kLateCopies}) {
    SCOPED_TRACE(options);
    const ProgramRun swapped = run_program(shared + options);
    expect_same_losses(swapped, plain);
    expect_swapped(swapped);
  }
  // With swap where nothing is recomputed: the switch has no effect.
  for (const std::string& options : {kNoRecompute + kAutoSwap, kNoRecompute + kOverlap}) {
    SCOPED_TRACE(options);
    expect_same_losses(run_program(shared + options), plain);
  }
}

TEST(ProgramExperts, OptionsChangeNoBitWithoutAPipeline) {
  expect_same_losses_with_every_option(kOneByOne);
}

TEST(ProgramExperts, OptionsChangeNoBitIn1F1B) {
  expect_same_losses_with_every_option(kTwoStages);
}

TEST(ProgramExperts, OptionsChangeNoBitInDualPipeV) {
  expect_same_losses_with_every_option(kTwoStages + kDualPipeV);
}

// The runs above send less at a time, and a pair's exchanges as one.
TEST(ProgramExperts, OverlapChangesNoBitWherePairsSendOneByOne) {
  const std::string long_sequences =
      "train --model.name deepseek_v3 --training.steps 2 --training.seq-len 1024 "
      "--model.num-layers 3 --training.local-batch-size 1 --training.global-batch-size 6 " +
      kTwoShare;
  const ProgramRun overlapped = run_program(long_sequences + kOverlap + kStrictSwap + kLateCopies);
  expect_same_losses(overlapped, run_program(long_sequences));
  expect_swapped(overlapped);
}

TEST(ProgramExperts, OneLargeMicrobatchSwapsAsWell) {
  const std::string eight_at_once = kSmall + kTwoShare + "--training.local-batch-size 8 ";
  const ProgramRun swapped = run_program(eight_at_once + kOverlap + kStrictSwap);
  expect_same_losses(swapped, run_program(eight_at_once));
  expect_swapped(swapped);
}

TEST(ProgramExperts, TwoDevicesHaveTheLossesOfOneWithinRounding) {
  const std::string batches = "--training.local-batch-size 1 --training.global-batch-size 8 ";
  const ProgramRun one_device = run_program(kSmall + batches);
  const ProgramRun two = run_program(kSmall + kTwoShare + batches);
  const ProgramRun four =
      run_program(kSmall + kTwoShare + kTwoStages + "--training.local-batch-size 4 " + kDualPipeV);
  for (const ProgramRun* run : {&one_device, &two, &four}) {
    expect_trained(*run);
  }
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(two.summary["device"]["count"], 2);
  EXPECT_EQ(four.summary["device"]["count"], 4);
  expect_losses_within_rounding(two, one_device);
  expect_losses_within_rounding(four, one_device);
}

const std::string kMtp = kSmall + "--training.num-mtp-modules 1 ";

TEST(ProgramMtp, SwapChangesNoBit) {
  const std::string one_device =
      kMtp + "--training.local-batch-size 1 --training.global-batch-size 4 ";
  const ProgramRun plain = run_program(one_device);
  for (const std::string& options : {kStrictSwap, kAutoSwap + kLateCopies}) {
    const ProgramRun swapped = run_program(one_device + options);
    expect_same_losses(swapped, plain);
    expect_swapped(swapped);
  }
}

// The embedding is on the first and on the last device, and stays the same on both; in DualPipeV
// they are one. So gradients of the embedding are summed in another order.
TEST(ProgramMtp, PipelineChangesNoBitWithSwapAndIsWithinRoundingOfOneDevice) {
  const ProgramRun one_device =
      run_program(kMtp + "--training.local-batch-size 1 --training.global-batch-size 4 ");
  expect_trained(one_device);
  for (const std::string& schedule : {std::string(), kDualPipeV}) {
    SCOPED_TRACE(schedule);
    const std::string two_stages = kMtp + kTwoStages + "--training.local-batch-size 4 " + schedule;
    const ProgramRun plain = run_program(two_stages);
    const ProgramRun swapped = run_program(two_stages + kStrictSwap + kLateCopies);
    expect_same_losses(swapped, plain);
    ASSERT_FALSE(HasFailure());
    expect_losses_within_rounding(plain, one_device);
    EXPECT_LE(swapped.summary["layer_input"]["peak_resident_inputs"], 2);
    EXPECT_EQ(swapped.summary["layer_input"]["prefetch_misses_after_first_step"], 0);
  }
}

// 16 billion parameters on four stages of two devices, dry.
std::string sixteen_billion(const std::string& preset, int local_batch) {
  return "train --model.name deepseek_v3 --model.flavor 16B --device.dry-run "
         "--debug.moe-force-load-balance --training.steps 2 --training.seq-len 4096 "
         "--training.dtype bfloat16 --device.memory 200GiB "
         "--parallelism.pipeline-parallel-degree 4 " +
         kTwoShare + "--device.preset " + preset + " --training.local-batch-size " +
         std::to_string(local_batch) + " ";
}

void expect_overlap_to_pay_and_swap_to_be_free(const std::string& run_of_16b) {
  const ProgramRun apart = run_program(run_of_16b);
  const ProgramRun overlapped = run_program(run_of_16b + kOverlap);
  const ProgramRun swapped = run_program(run_of_16b + kOverlap + kStrictSwap);
  expect_trained(apart);
  expect_trained(overlapped);
  expect_swapped(swapped);
  ASSERT_FALSE(testing::Test::HasFailure());
  EXPECT_LT(last_step_ms(overlapped), last_step_ms(apart));
  EXPECT_LE(last_step_ms(swapped), last_step_ms(overlapped) * 1.01);
}

// The debug model is bound by the host's launches. A pair's exchanges go as one, so it has fewer.
TEST(ProgramExpertTimes, OverlapPaysWhereLaunchesBind) {
  const std::string eight_devices =
      "train --model.name deepseek_v3 --training.steps 4 --training.local-batch-size 8 "
      "--parallelism.pipeline-parallel-degree 4 " +
      kTwoShare;
  for (const std::string& schedule : {std::string(), kDualPipeV}) {
    SCOPED_TRACE(schedule);
    const ProgramRun apart = run_program(eight_devices + schedule);
    const ProgramRun overlapped = run_program(eight_devices + schedule + kOverlap);
    expect_same_losses(overlapped, apart);
    EXPECT_LE(last_step_ms(overlapped), last_step_ms(apart) * 0.995);
    if (schedule == kDualPipeV) {
      const ProgramRun swapped = run_program(eight_devices + schedule + kOverlap + kStrictSwap);
      expect_same_losses(swapped, apart);
      EXPECT_LE(last_step_ms(swapped), last_step_ms(overlapped) * 1.01);
    }
  }
}

TEST(ProgramExpertTimes, OverlapPaysIn1F1BOnH100) {
  expect_overlap_to_pay_and_swap_to_be_free(sixteen_billion("h100-sxm", 8));
}

TEST(ProgramExpertTimes, OverlapPaysIn1F1BOnAscend) {
  expect_overlap_to_pay_and_swap_to_be_free(sixteen_billion("ascend-910b", 8));
}

TEST(ProgramExpertTimes, OverlapPaysInDualPipeVOnH100) {
  expect_overlap_to_pay_and_swap_to_be_free(sixteen_billion("h100-sxm", 16) + kDualPipeV);
}

}  // namespace
}  // namespace swapline::trainer
