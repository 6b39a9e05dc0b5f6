// What swapping promises, seen from outside: the same losses to the last bit, less memory, no
// races.
#include "tests/trainer/program_run.h"

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kSwapBoth =
    "--optimizer.swap-optimizer --optimizer.swap-optimizer-times 16 --swap-layer-input.enable "
    "--swap-layer-input.max-swapping-out 1 ";

// Bits, races, states gone, nothing newly pinned: true of every swapped run.
void expect_sound(const ProgramRun& swapped, const ProgramRun& plain) {
  ASSERT_EQ(swapped.status, 0) << swapped.err;
  ASSERT_EQ(plain.status, 0) << plain.err;
  EXPECT_EQ(losses_of(swapped), losses_of(plain));
  EXPECT_EQ(swapped.summary["races"], 0);
  EXPECT_EQ(swapped.summary["optimizer"]["state_bytes_on_device_outside_step"], 0);
  EXPECT_EQ(swapped.summary["host"]["pinned_allocations_after_first_step"], 0);
}

TEST(ProgramSwap, LossesAreTheSameToTheLastBitWithLessMemory) {
  const ProgramRun plain = train_small();
  const ProgramRun swapped = train_small(kSwapBoth);
  expect_sound(swapped, plain);
  EXPECT_LE(swapped.summary["layer_input"]["peak_resident_inputs"], 1);
  EXPECT_LT(swapped.summary["peak_allocated_bytes"], plain.summary["peak_allocated_bytes"]);
  EXPECT_LE(swapped.summary["optimizer"]["arena_bytes"].get<size_t>() * 16,
            plain.summary["optimizer"]["state_bytes"].get<size_t>());
}

TEST(ProgramSwap, LateCopiesAndASlowLinkChangeNoBit) {
  const ProgramRun plain = train_small();
  expect_sound(train_small(kSwapBoth + "--device.late-copies"), plain);
  expect_sound(train_small(kSwapBoth + "--device.link-slowdown 10"), plain);
}

TEST(ProgramSwap, AccumulationChangesNoBit) {
  const std::string accumulated = "--training.global-batch-size 6 ";
  expect_sound(train_small(kSwapBoth + accumulated), train_small(accumulated));
}

TEST(ProgramSwap, RecomputeInBlocksFirstLayersOrNoneChangesNoBit) {
  const ProgramRun plain = train_small("--activation-checkpoint.mode none");
  EXPECT_EQ(losses_of(train_small()), losses_of(plain));
  for (const std::string recompute :
       {"--activation-checkpoint.layers-per-block 4",
        "--activation-checkpoint.first-layers 3",
        "--activation-checkpoint.layers-per-block 2 --activation-checkpoint.first-layers 3"}) {
    expect_sound(train_small(kSwapBoth + recompute), plain);
  }
}

TEST(ProgramSwap, LayerInputSwapWithoutRecomputeIsSaidOnceAndHasNoEffect) {
  const ProgramRun run = train_small(
      "--activation-checkpoint.mode none --swap-layer-input.enable "
      "--optimizer.swap-optimizer");
  expect_sound(run, train_small("--activation-checkpoint.mode none"));
  const size_t note = run.out.find("no effect");
  ASSERT_NE(note, std::string::npos);
  EXPECT_EQ(run.out.find("no effect", note + 1), std::string::npos);
  EXPECT_EQ(run.summary["layer_input"]["enabled"], false);
}

TEST(ProgramSwap, TrainsWhereThePlainRunDoesNotFit) {
  const std::string small = "--device.memory 72MiB ";
  EXPECT_EQ(train_small(small).status, 1);
  expect_sound(train_small(small + kSwapBoth), train_small());
}

TEST(ProgramSwap, EightBillionParametersKeepTheirStepTime) {
  const std::string shape =
      "train --model.flavor 8B --device.dry-run --training.steps 3 --training.seq-len 4096 "
      "--training.local-batch-size 1 --training.dtype bfloat16 ";
  const ProgramRun plain = run_program(shape);
  const ProgramRun inputs =
      run_program(shape + "--swap-layer-input.enable --swap-layer-input.max-swapping-out 1");
  EXPECT_LE(inputs.summary["layer_input"]["peak_resident_inputs"], 1);
  EXPECT_LE(inputs.summary["steps"][2]["step_ms"].get<double>(),
            plain.summary["steps"][2]["step_ms"].get<double>() * 1.01);

  const nlohmann::json states = run_program(shape + "--optimizer.swap-optimizer").summary;
  // All of the states leave, but for what streams through.
  EXPECT_LE(states["peak_allocated_bytes"].get<double>(),
            plain.summary["peak_allocated_bytes"].get<double>() * 0.51);
  const nlohmann::json& optimizer = states["optimizer"];
  EXPECT_LE(optimizer["arena_bytes"].get<size_t>() * 16, optimizer["state_bytes"].get<size_t>());
  EXPECT_LE(optimizer["step_ms"].get<double>(), optimizer["h2d_ms"].get<double>() * 1.05);
}

TEST(ProgramSwap, LargestModelTakesAStepOnALaptop) {
  const ProgramRun run = run_program(
      "train --model.flavor 405B --device.dry-run --training.steps 1 --training.seq-len 4096 "
      "--training.local-batch-size 1 --training.dtype bfloat16 --device.memory 2TiB " +
      kSwapBoth);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.summary["model"]["num_parameters"], 405'853'388'800);
}

}  // namespace
}  // namespace swapline::trainer
