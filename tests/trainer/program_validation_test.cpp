// Validation seen from outside: the loss of a forward at the same weights, and a training that does
// not notice.
#include "tests/trainer/program_expectations.h"
#include "tests/trainer/temporary_folder.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kSmall = "train --training.steps 3 --training.seq-len 32 --model.num-layers 4 ";
const std::string kValidate = "--validator.enable --validator.freq 1 --validator.steps 2 ";
const std::string kTwoStages =
    "--training.local-batch-size 4 --parallelism.pipeline-parallel-degree 2 ";
const std::string kDualPipeV = "--parallelism.pipeline-parallel-schedule DualPipeV ";
const std::string kExperts = "--model.name deepseek_v3 ";
const std::string kTwoShare = "--parallelism.expert-parallel-degree 2 ";
const std::string kOverlap = "--parallelism.moe-fb-overlap ";

// Ways to train the same four or eight sequences a step.
const std::vector<std::string>& ways_to_train() {
  static const std::vector<std::string> ways = {
      "--training.local-batch-size 4 " + kAutoSwap,
      "--training.local-batch-size 4 --device.type cpu ",
      kTwoStages + kStrictSwap + kLateCopies,
      kTwoStages + kDualPipeV + kAutoSwap,
      "--training.local-batch-size 4 " + kExperts + "--training.num-mtp-modules 1 " + kAutoSwap,
      "--training.local-batch-size 4 " + kExperts + kTwoShare,
      kTwoStages + kExperts + kTwoShare + kOverlap + kStrictSwap + kLateCopies,
      kTwoStages + kExperts + kTwoShare + kDualPipeV + kOverlap + kAutoSwap};
  return ways;
}

std::string some_text(int size) {
  std::string text;
  for (int i = 0; i < size; ++i) {
    text += static_cast<char>('a' + (i * i / 7 + i * 5) % 26);
  }
  return text;
}

TEST(ProgramValidation, TrainingKeepsItsBits) {
  for (const std::string& way : ways_to_train()) {
    SCOPED_TRACE(way);
    const ProgramRun plain = run_program(kSmall + way);
    const ProgramRun validated = run_program(kSmall + way + kValidate);
    expect_same_losses(validated, plain);
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_EQ(validated.summary["validation"].size(), 3U);
    EXPECT_TRUE(plain.summary["validation"].empty());
  }
}

// Training and validation on one and the same batch: a validation sees the weights that the next
// step starts from.
TEST(ProgramValidation, ItsLossIsThatOfAForwardAtTheSameWeights) {
  for (const std::string& way : ways_to_train()) {
    SCOPED_TRACE(way);
    const int num_sequences = way.find(kTwoShare) == std::string::npos ? 4 : 8;
    const TemporaryFolder folder;
    std::ofstream(folder.path("text.txt")) << some_text(num_sequences * 32);
    const std::string path = folder.path("text.txt") + " ";
    const ProgramRun run = run_program(kSmall + way + kValidate + "--data.path " + path +
                                       "--validator.steps -1 --validator.dataset-path " + path);
    expect_trained(run);
    ASSERT_FALSE(HasFatalFailure());
    for (size_t step = 0; step < 2; ++step) {
      const nlohmann::json& record = run.summary["validation"][step];
      EXPECT_EQ(record["step"], step + 1);
      EXPECT_EQ(record["loss"], run.summary["steps"][step + 1]["loss"]);
    }
  }
}

TEST(ProgramValidation, IsTheSameHoweverTheModelIsSpread) {
  const ProgramRun one_device = run_program(
      kSmall + "--training.local-batch-size 1 --training.global-batch-size 4 " + kValidate);
  const ProgramRun stages = run_program(kSmall + kTwoStages + kValidate);
  expect_same_losses(stages, one_device);
  EXPECT_EQ(stages.summary["validation"], one_device.summary["validation"]);
}

TEST(ProgramValidation, ComesEachFreqStepsAndHasALine) {
  const ProgramRun run = run_program(kSmall + "--validator.enable --validator.freq 2 ");
  expect_trained(run);
  ASSERT_EQ(run.summary["validation"].size(), 1U);
  EXPECT_EQ(run.summary["validation"][0]["step"], 2);
  const size_t second = run.out.find("step:  2");
  const size_t line = run.out.find("validate step:  2  loss: ");
  ASSERT_NE(line, std::string::npos);
  EXPECT_LT(second, line);
  EXPECT_LT(line, run.out.find("step:  3"));
  EXPECT_NE(run.out.find("tps: ", line), std::string::npos);
}

TEST(ProgramValidation, ADryRunHasNoLoss) {
  const ProgramRun run = run_program(kSmall + kValidate + "--device.dry-run");
  expect_trained(run);
  EXPECT_TRUE(run.summary["validation"][0]["loss"].is_null());
}

TEST(ProgramValidation, SaysWhatCannotBe) {
  expect_usage_error(kValidate + "--validator.steps 0", {"--validator.steps: found 0", "-1"});
  expect_usage_error(kValidate + "--validator.freq 0", {"--validator.freq"});
  const ProgramRun run = run_program(kSmall + kValidate + "--validator.dataset-path nowhere");
  EXPECT_NE(run.status, 0);
  EXPECT_NE(run.err.find("--validator.dataset-path: nowhere: does not exist"), std::string::npos)
      << run.err;
}

}  // namespace
}  // namespace swapline::trainer
