// Ten steps with layer inputs swapped against ten without, schedule by schedule: whatever goes
// wrong by one bit has ten steps to be seen.
#include "tests/trainer/program_expectations.h"

#include <string>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kSmall =
    "train --training.steps 10 --training.seq-len 16 --model.num-layers 4 "
    "--training.local-batch-size 4 --parallelism.pipeline-parallel-degree 2 ";
const std::string kSchedule = "--parallelism.pipeline-parallel-schedule ";
const std::string kExperts = "--model.name deepseek_v3 --parallelism.expert-parallel-degree 2 ";
const std::string kOverlap = "--parallelism.moe-fb-overlap ";

class ProgramTenSteps : public testing::TestWithParam<std::string> {};

TEST_P(ProgramTenSteps, SwapChangesNoBit) {
  const ProgramRun plain = run_program(kSmall + GetParam());
  const ProgramRun swapped = run_program(kSmall + GetParam() + kAutoSwap + kLateCopies);
  expect_same_losses(swapped, plain);
  expect_swapped(swapped);
  EXPECT_EQ(plain.summary["steps"].size(), 10U);
}

INSTANTIATE_TEST_SUITE_P(
    Llama,
    ProgramTenSteps,
    testing::Values(kSchedule + "GPipe ",
                    kSchedule + "1F1B ",
                    kSchedule + "Interleaved1F1B ",
                    kSchedule + "DualPipeV ",
                    kSchedule + "1F1B --activation-checkpoint.recompute-ahead ",
                    kSchedule + "1F1B --activation-checkpoint.layers-per-block 2 ",
                    kSchedule + "1F1B --activation-checkpoint.first-layers 1 "));
INSTANTIATE_TEST_SUITE_P(Experts,
                         ProgramTenSteps,
                         testing::Values(kExperts + kSchedule + "1F1B " + kOverlap,
                                         kExperts + kSchedule + "DualPipeV " + kOverlap,
                                         kExperts + kSchedule + "Interleaved1F1B "));

}  // namespace
}  // namespace swapline::trainer
