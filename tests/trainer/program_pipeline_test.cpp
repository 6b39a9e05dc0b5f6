// Pipelines seen from outside: the bits of the run without one, memory and step times with swap.
#include "tests/trainer/program_expectations.h"

#include <tuple>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kSmall = "train --training.steps 3 --training.seq-len 32 --model.num-layers 8 ";
const std::string kUnpipelined =
    kSmall + "--training.local-batch-size 1 --training.global-batch-size 8 ";

// Eight micro-batches of one sequence: the batches of kUnpipelined.
std::string pipeline_of(int degree, const std::string& schedule) {
  return "--training.local-batch-size 8 --parallelism.pipeline-parallel-degree " +
         std::to_string(degree) + " --parallelism.pipeline-parallel-schedule " + schedule + " ";
}

// Parameters are names: a letter before what starts with a digit.
std::string test_name(const testing::TestParamInfo<std::string>& info) {
  return "Of" + info.param;
}

const auto kSchedules = testing::Values("GPipe", "1F1B", "Interleaved1F1B", "DualPipeV");

class ProgramPipeline : public testing::TestWithParam<std::string> {};

TEST_P(ProgramPipeline, HasTheLossesOfOneDeviceWithAndWithoutSwap) {
  const std::string pipeline = kSmall + pipeline_of(4, GetParam());
  const ProgramRun one_device = run_program(kUnpipelined);
  const ProgramRun plain = run_program(pipeline);
  const ProgramRun strict = run_program(pipeline + kStrictSwap);
  // Late copies change no time and no address: they show missing waits in what is compared anyway.
  const ProgramRun automatic = run_program(pipeline + kAutoSwap + kLateCopies);
  expect_same_losses(plain, one_device);
  expect_same_losses(strict, one_device);
  expect_same_losses(automatic, one_device);
  expect_swapped(strict);
  expect_swapped(automatic);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(plain.summary["device"]["count"], 4);
  EXPECT_LT(strict.summary["peak_allocated_bytes"], plain.summary["peak_allocated_bytes"]);
  EXPECT_EQ(automatic.summary["peak_allocated_bytes"], strict.summary["peak_allocated_bytes"]);
  EXPECT_EQ(automatic.summary["peak_reserved_bytes"], strict.summary["peak_reserved_bytes"]);
}

INSTANTIATE_TEST_SUITE_P(Schedules, ProgramPipeline, kSchedules, test_name);

TEST(ProgramPipelineSplit, UnevenStagesChangeNoBit) {
  const ProgramRun one_device = run_program(kUnpipelined);
  for (const std::string& four_stages : {pipeline_of(4, "GPipe"),
                                         pipeline_of(4, "1F1B"),
                                         pipeline_of(2, "Interleaved1F1B"),
                                         pipeline_of(2, "DualPipeV")}) {
    SCOPED_TRACE(four_stages);
    const ProgramRun run =
        run_program(kSmall + four_stages +
                    "--parallelism.pipeline-parallel-layers-per-stage 3,2,2,1 " + kStrictSwap);
    expect_same_losses(run, one_device);
    expect_swapped(run);
  }
}

// Preset, micro-batches, schedule.
using Shape = std::tuple<std::string, int, std::string>;

class ProgramPipelineTimes : public testing::TestWithParam<Shape> {};

std::string shape_name(const testing::TestParamInfo<Shape>& info) {
  const auto& [preset, num_microbatches, schedule] = info.param;
  return schedule + std::to_string(num_microbatches) + "MicrobatchesOn_" +
         preset.substr(0, preset.find('-'));
}

TEST_P(ProgramPipelineTimes, EightBillionParametersKeepTheirStepTime) {
  const auto& [preset, num_microbatches, schedule] = GetParam();
  const std::string pipeline =
      "train --model.flavor 8B --device.dry-run --training.steps 3 --training.seq-len 4096 "
      "--training.dtype bfloat16 " +
      pipeline_of(4, schedule) + "--training.local-batch-size " + std::to_string(num_microbatches) +
      " --device.preset " + preset + " ";
  const ProgramRun plain = run_program(pipeline);
  const ProgramRun strict = run_program(pipeline + kStrictSwap);
  const ProgramRun automatic = run_program(pipeline + kAutoSwap);
  expect_trained(plain);
  expect_swapped(strict);
  expect_swapped(automatic);
  ASSERT_FALSE(HasFailure());
  EXPECT_LE(last_step_ms(strict), last_step_ms(plain) * 1.01);
  EXPECT_LE(last_step_ms(automatic), last_step_ms(strict) * 1.0001);
  EXPECT_EQ(strict.summary["layer_input"]["exposed_ms_per_step"], 0.0);
  EXPECT_EQ(automatic.summary["layer_input"]["exposed_ms_per_step"], 0.0);
  EXPECT_EQ(automatic.summary["peak_allocated_bytes"], strict.summary["peak_allocated_bytes"]);
}

INSTANTIATE_TEST_SUITE_P(EightMicrobatches,
                         ProgramPipelineTimes,
                         testing::Combine(testing::Values("ascend-910b", "h100-sxm"),
                                          testing::Values(8),
                                          kSchedules),
                         shape_name);
INSTANTIATE_TEST_SUITE_P(SixteenMicrobatches,
                         ProgramPipelineTimes,
                         testing::Combine(testing::Values("h100-sxm"),
                                          testing::Values(16),
                                          testing::Values("1F1B", "DualPipeV")),
                         shape_name);

}  // namespace
}  // namespace swapline::trainer
