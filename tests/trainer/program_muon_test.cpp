// --optimizer.name Muon: swapped and resident runs have the same losses, at hardly more time.
#include "tests/trainer/program_expectations.h"
#include "tests/trainer/program_run.h"
#include "tests/trainer/temporary_folder.h"

#include <string>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kMuon = "--optimizer.name Muon ";
const std::string kSwapBoth = "--optimizer.swap-optimizer --swap-layer-input.enable ";
const std::string kDeepseek = "--model.name deepseek_v3 ";

double loss_of(const ProgramRun& run, size_t step) {
  return run.summary["steps"][step]["loss"].get<double>();
}

void expect_sound(const ProgramRun& swapped, const ProgramRun& plain) {
  expect_same_losses(swapped, plain);
  EXPECT_EQ(swapped.summary["optimizer"]["state_bytes_on_device_outside_step"], 0);
  EXPECT_EQ(swapped.summary["host"]["pinned_allocations_after_first_step"], 0);
  EXPECT_EQ(swapped.summary["optimizer"]["state_bytes"], plain.summary["optimizer"]["state_bytes"]);
}

// Short runs of one layer: processors without products in bfloat16 take seconds for a step.
ProgramRun train_longer(const std::string& arguments) {
  return run_program(
      "train --training.steps 8 --training.seq-len 64 --training.local-batch-size 2 "
      "--model.num-layers 1 --optimizer.muon-ns-steps 2 " +
      arguments);
}

// Enough to see what an option does.
ProgramRun train_short(const std::string& arguments) {
  return run_program(
      "train --training.steps 3 --training.seq-len 32 --training.local-batch-size 1 "
      "--model.num-layers 1 " +
      arguments);
}

void expect_learns(const ProgramRun& run) {
  expect_trained(run);
  EXPECT_LT(loss_of(run, 7), loss_of(run, 0) - 0.25);
}

TEST(ProgramMuon, SwappedAndPlainLossesAreTheSameToTheLastDigitAndFall) {
  const ProgramRun plain = train_longer(kMuon);
  expect_learns(plain);
  expect_sound(train_longer(kMuon + kSwapBoth + kLateCopies), plain);
  // Matrices have one state instead of two.
  EXPECT_LT(plain.summary["optimizer"]["state_bytes"].get<double>(),
            train_small().summary["optimizer"]["state_bytes"].get<double>() * 0.75);
}

TEST(ProgramMuon, ExpertsAreMatricesTooAlsoOnSeveralDevices) {
  const ProgramRun plain = train_longer(kMuon + kDeepseek);
  expect_learns(plain);
  expect_sound(train_longer(kMuon + kDeepseek + kSwapBoth + kLateCopies), plain);
  const std::string devices =
      "--parallelism.expert-parallel-degree 2 --parallelism.pipeline-parallel-degree 2 ";
  const std::string few_products = kMuon + "--optimizer.muon-ns-steps 1 " + kDeepseek + devices;
  expect_sound(train_small(few_products + kSwapBoth), train_small(few_products));
}

TEST(ProgramMuon, EveryOptionHasItsEffect) {
  const std::string base = losses_of(train_short(kMuon));
  for (const std::string option :
       {"--optimizer.muon-momentum 0.8",
        "--optimizer.no-muon-enable-nesterov",
        "--optimizer.muon-ns-steps 3",
        "--optimizer.muon-adjust-lr-fn original",
        "--optimizer.muon-adjust-lr-fn original --optimizer.muon-lr 0.01",
        "--optimizer.muon-ns-steps 10",
        "--optimizer.muon-ns-steps 10 --optimizer.muon-hybrid-ns"}) {
    SCOPED_TRACE(option);
    const ProgramRun run = train_short(kMuon + option);
    expect_trained(run);
    EXPECT_NE(losses_of(run), base);
  }
  EXPECT_EQ(losses_of(train_short(kMuon + "--optimizer.swap-merge-buckets 4")), base);
}

TEST(ProgramMuon, TheScheduleDrivesBothLearningRates) {
  const std::string original = kMuon + "--optimizer.muon-adjust-lr-fn original ";
  EXPECT_EQ(losses_of(train_short(original + "--optimizer.muon-lr 8e-4")),
            losses_of(train_short(original)));
  for (const std::string one_half : {"--optimizer.lr 0 --optimizer.muon-lr 0.02 ",
                                     "--optimizer.lr 0.02 --optimizer.muon-lr 0 "}) {
    EXPECT_NE(losses_of(train_short(original + one_half + "--lr-scheduler.warmup-steps 3")),
              losses_of(train_short(original + one_half)));
  }
}

// Saved by a swapped run, taken up by a resident one.
TEST(ProgramMuon, ACheckpointHoldsTheMomentum) {
  const TemporaryFolder folder;
  const auto train = [](int steps, const std::string& arguments) {
    return run_program(
        "train --training.seq-len 32 --training.local-batch-size 1 --model.num-layers 2 "
        "--optimizer.muon-ns-steps 2 --lr-scheduler.total-steps 6 --training.steps " +
        std::to_string(steps) + " " + kMuon + kDeepseek + arguments);
  };
  const std::string checkpoint =
      "--checkpoint.enable --checkpoint.no-last-save-model-only --checkpoint.folder " +
      folder.path("c") + " ";
  const ProgramRun whole = train(6, "");
  expect_trained(train(3, checkpoint + kSwapBoth));
  const ProgramRun rest = train(6, checkpoint);
  expect_trained(rest);
  ASSERT_EQ(rest.summary["steps"].size(), 3u);
  for (size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(loss_of(rest, step), loss_of(whole, step + 3));
  }
}

TEST(ProgramMuon, OptionsThatContradictAreRefused) {
  expect_usage_error(kMuon + "--optimizer.muon-lr 0.01",
                     {"--optimizer.muon-lr", "match_rms_adamw", "original"});
  expect_usage_error(kMuon + "--optimizer.muon-hybrid-ns",
                     {"--optimizer.muon-hybrid-ns", "muon-ns-steps 5", "more than 8"});
  expect_usage_error(kMuon + "--optimizer.muon-ns-steps 100",
                     {"--optimizer.muon-ns-steps", "100", "at most 99"});
  expect_usage_error(kMuon + "--optimizer.swap-merge-buckets 0",
                     {"--optimizer.swap-merge-buckets", "at least 1"});
  expect_usage_error(kMuon + "--training.dtype bfloat16 --optimizer.master-weights",
                     {"--optimizer.master-weights", "--optimizer.name Muon", "AdamW and Adam"});
}

TEST(ProgramMuon, AnEightBillionParameterModelHardlyPaysForTheSwap) {
  for (const std::string preset : {"h100-sxm", "ascend-910b"}) {
    const std::string shape = "train " + kMuon + "--device.preset " + preset +
                              " --model.flavor 8B --device.dry-run --training.steps 3 "
                              "--training.seq-len 4096 --training.local-batch-size 1 "
                              "--training.dtype bfloat16 ";
    const ProgramRun plain = run_program(shape);
    const ProgramRun swapped = run_program(shape + "--optimizer.swap-optimizer");
    EXPECT_LE(last_step_ms(swapped), last_step_ms(plain) * 1.001) << preset;
    EXPECT_LE(swapped.summary["peak_allocated_bytes"].get<double>(),
              plain.summary["peak_allocated_bytes"].get<double>() * 0.7);
  }
}

}  // namespace
}  // namespace swapline::trainer
