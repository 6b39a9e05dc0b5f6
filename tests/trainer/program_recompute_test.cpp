// Ways to recompute seen from outside: what is run again, and when, changes no bit; with swap and
// without.
#include "tests/trainer/program_expectations.h"

#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kLlama = "--model.name llama3 ";
const std::string kDeepseek = "--model.name deepseek_v3 ";
const std::string kOneDevice = "--training.local-batch-size 2 ";
const std::string kPipeline =
    "--training.local-batch-size 4 --parallelism.pipeline-parallel-degree 2 ";

std::string small(const std::string& model) {
  return "train --training.steps 3 --training.seq-len 32 --model.num-layers 4 " + model;
}

std::string recompute(const std::string& how) {
  return "--activation-checkpoint." + how + " ";
}

std::string selective(const std::string& part) {
  return recompute("mode selective") + recompute("selective-part " + part);
}

size_t num_notes(const ProgramRun& run) {
  const std::string note = "no effect";
  size_t count = 0;
  for (size_t at = run.out.find(note); at != std::string::npos; at = run.out.find(note, at + 1)) {
    ++count;
  }
  return count;
}

// Parameters, buffers and optimizer states after the last step, as they are saved.
std::string checkpoint_of(const std::string& run) {
  const TemporaryFolder folder;
  const ProgramRun saved =
      run_program(run + "--checkpoint.enable --checkpoint.no-last-save-model-only " +
                  "--job.dump-folder '" + folder.path() + "'");
  EXPECT_EQ(saved.status, 0) << saved.err;
  std::ostringstream content;
  content << std::ifstream(folder.path("checkpoint/step-3/model-00001-of-00001.safetensors"),
                           std::ios::binary)
                 .rdbuf();
  EXPECT_GT(content.str().size(), size_t{1} << 20);
  return content.str();
}

class ProgramRecompute : public testing::TestWithParam<std::string> {};

TEST_P(ProgramRecompute, WholeLayersInAnyGroupingChangeNoBit) {
  const std::string run = small(GetParam()) + kOneDevice;
  const ProgramRun full = run_program(run);
  for (const std::string& how :
       {recompute("mode full"), recompute("layers-per-block 2"), recompute("first-layers 2")}) {
    SCOPED_TRACE(how);
    const ProgramRun swapped = run_program(run + how + kStrictSwap);
    expect_same_losses(swapped, full);
    expect_swapped(swapped);
    EXPECT_EQ(num_notes(swapped), 0U);
  }
  for (const std::string& how : {recompute("layers-per-block 2"), recompute("first-layers 2")}) {
    SCOPED_TRACE(how);
    expect_same_losses(run_program(run + how), full);
  }
}

// Layer inputs are not what these modes keep: the switch is said once to have no effect.
TEST_P(ProgramRecompute, PartsOrNothingChangeNoBitAndSwapHasNoEffect) {
  const std::string run = small(GetParam()) + kOneDevice;
  const ProgramRun full = run_program(run);
  for (const std::string& how : {selective("attention-core"),
                                 selective("mlp"),
                                 selective("norms"),
                                 recompute("mode none")}) {
    SCOPED_TRACE(how);
    const ProgramRun plain = run_program(run + how);
    const ProgramRun swapped = run_program(run + how + kStrictSwap);
    expect_same_losses(plain, full);
    expect_same_losses(swapped, full);
    EXPECT_EQ(num_notes(plain), 0U);
    EXPECT_EQ(num_notes(swapped), 1U);
    EXPECT_EQ(swapped.summary["layer_input"]["enabled"], false);
    EXPECT_EQ(swapped.summary["peak_allocated_bytes"], plain.summary["peak_allocated_bytes"]);
  }
}

// Losses may agree by luck: here all that a run leaves is compared.
TEST_P(ProgramRecompute, ModelAndStatesAreTheSameToTheLastBitHoweverLayersAreRunAgain) {
  const std::string run = small(GetParam()) + kOneDevice;
  const std::string full = checkpoint_of(run);
  for (const std::string& how : {recompute("layers-per-block 2"),
                                 recompute("first-layers 2"),
                                 selective("attention-core"),
                                 selective("mlp"),
                                 selective("norms"),
                                 recompute("mode none"),
                                 kStrictSwap}) {
    EXPECT_TRUE(checkpoint_of(run + how) == full) << how;
  }
}

TEST_P(ProgramRecompute, AheadInTheBubbleChangesNoBit) {
  const std::string run = small(GetParam()) + kPipeline;
  const ProgramRun full = run_program(run);
  expect_same_losses(run_program(run + recompute("recompute-ahead")), full);
  const ProgramRun swapped =
      run_program(run + recompute("recompute-ahead") + kAutoSwap + kLateCopies);
  expect_same_losses(swapped, full);
  expect_swapped(swapped);
}

INSTANTIATE_TEST_SUITE_P(Models, ProgramRecompute, testing::Values(kLlama, kDeepseek));

}  // namespace
}  // namespace swapline::trainer
