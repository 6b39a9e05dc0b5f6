// Where the program's optimizer states are changes no bit of its losses: on the device, swapped,
// in mapped host memory, or some of each.
#include "tests/trainer/program_expectations.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kSwap = "--optimizer.swap-optimizer ";
const std::string kVirtual = "--optimizer.virtual-optimizer ";
const std::string kSome = kVirtual + "--optimizer.virtual-optimizer-size 0.01 ";

size_t of_optimizer(const ProgramRun& run, const std::string& what) {
  return run.summary["optimizer"][what].get<size_t>();
}

TEST(ProgramOptimizer, LossesAreTheSameWhereverTheStatesAre) {
  // Few of Muon's products: processors without those in bfloat16 take seconds for a step.
  for (const std::string model : {"",
                                  "--optimizer.name Adam ",
                                  "--optimizer.name Muon --optimizer.muon-ns-steps 1 ",
                                  "--model.name deepseek_v3 "}) {
    SCOPED_TRACE(model);
    const ProgramRun plain = train_small(model);
    const size_t state_bytes = of_optimizer(plain, "state_bytes");
    for (const std::string& states : std::vector<std::string>{
             kSwap, kVirtual, kVirtual + kSwap, kSome, kSome + kSwap, kVirtual + kLateCopies}) {
      SCOPED_TRACE(states);
      const ProgramRun run = train_small(model + states);
      expect_same_losses(run, plain);
      EXPECT_EQ(of_optimizer(run, "state_bytes"), state_bytes);
      EXPECT_EQ(run.summary["host"]["pinned_allocations_after_first_step"], 0);
      const bool is_any_swapped = states == kSwap || states == kSome + kSwap;
      EXPECT_EQ(of_optimizer(run, "arena_bytes") > 0, is_any_swapped);
    }
  }
}

TEST(ProgramOptimizer, AllVirtualStatesTakeNoDeviceMemoryAndSomeTakeTheirPart) {
  const ProgramRun plain = train_small();
  const ProgramRun all = train_small(kVirtual);
  const ProgramRun some = train_small(kSome);
  expect_same_losses(all, plain);
  EXPECT_EQ(of_optimizer(plain, "mapped_bytes"), 0U);
  EXPECT_EQ(of_optimizer(all, "mapped_bytes"), of_optimizer(plain, "state_bytes"));
  EXPECT_EQ(of_optimizer(all, "state_bytes_on_device_outside_step"), 0U);
  const auto asked = static_cast<size_t>(0.01 * 0x1p30);
  EXPECT_LE(of_optimizer(some, "mapped_bytes"), asked);
  EXPECT_GT(of_optimizer(some, "mapped_bytes"), asked - 64 * 8);
  EXPECT_EQ(of_optimizer(some, "state_bytes_on_device_outside_step"),
            of_optimizer(plain, "state_bytes") - of_optimizer(some, "mapped_bytes"));
  EXPECT_LT(all.summary["peak_allocated_bytes"], some.summary["peak_allocated_bytes"]);
  EXPECT_LT(some.summary["peak_allocated_bytes"], plain.summary["peak_allocated_bytes"]);
}

// Options that change the arithmetic: the same bits swapped and not. On the CPU's kernels foreach
// happens to give fused's.
TEST(ProgramOptimizer, StateOptionsHaveTheirEffectWhereverTheStatesAre) {
  const std::string bf16 = "--training.dtype bfloat16 ";
  for (const std::string& option :
       std::vector<std::string>{"--optimizer.state-dtype bfloat16 ",
                                bf16 + "--optimizer.master-weights ",
                                "--optimizer.implementation foreach "}) {
    SCOPED_TRACE(option);
    const ProgramRun plain = train_small(option);
    const ProgramRun swapped = train_small(option + kSwap);
    expect_same_losses(swapped, plain);
    EXPECT_GT(of_optimizer(swapped, "scratch_bytes"), 0U);
    if (option.find("foreach") == std::string::npos) {
      const ProgramRun other = train_small(option.starts_with(bf16) ? bf16 : "");
      EXPECT_NE(losses_of(plain), losses_of(other));
    }
  }
  const ProgramRun half = train_small(kSwap + "--optimizer.swap-optimizer-fraction 0.5");
  expect_same_losses(half, train_small());
  EXPECT_LE(of_optimizer(half, "kept_bytes") * 2, of_optimizer(half, "state_bytes"));
  EXPECT_GT(of_optimizer(half, "kept_bytes") * 3, of_optimizer(half, "state_bytes"));
  EXPECT_EQ(of_optimizer(half, "state_bytes_on_device_outside_step"),
            of_optimizer(half, "kept_bytes"));
  expect_usage_error("--optimizer.master-weights",
                     {"--optimizer.master-weights", "--training.dtype float32", "bfloat16"});
  expect_usage_error("--optimizer.swap-optimizer-fraction 1.5",
                     {"--optimizer.swap-optimizer-fraction", "1.5"});
}

TEST(ProgramOptimizer, EachPipelineRankHasASizeOfItsOwn) {
  const std::string pipeline =
      "--parallelism.pipeline-parallel-degree 2 --training.local-batch-size 4 ";
  const ProgramRun plain = train_small(pipeline);
  const ProgramRun first =
      train_small(pipeline + kVirtual + "--optimizer.virtual-optimizer-size 0.004,0");
  const ProgramRun both =
      train_small(pipeline + kVirtual + "--optimizer.virtual-optimizer-size 0.004,0.002");
  const ProgramRun one =
      train_small(pipeline + kVirtual + "--optimizer.virtual-optimizer-size 0.004");
  for (const ProgramRun* run : {&first, &both, &one}) {
    expect_same_losses(*run, plain);
  }
  const auto gib = [](double size) { return static_cast<double>(size * 0x1p30); };
  const auto mapped = [](const ProgramRun& run) {
    return static_cast<double>(of_optimizer(run, "mapped_bytes"));
  };
  EXPECT_NEAR(mapped(first), gib(0.004), 512);
  EXPECT_NEAR(mapped(both), gib(0.006), 1024);
  EXPECT_NEAR(mapped(one), gib(0.008), 1024);
}

TEST(ProgramOptimizer, ASizeThatCannotBeIsRefused) {
  const std::string name = "--optimizer.virtual-optimizer-size";
  for (const std::string size : {"-1", "nan", "inf", "some", "2GiB", "1,,2", "1,"}) {
    expect_usage_error(kVirtual + name + "=" + size,
                       {name, "\"" + size + "\"", "all, or a number of GiB"});
  }
  expect_usage_error(kVirtual + name + " 1,2", {name, "2 sizes", "one for each of 1"});
  expect_usage_error(kVirtual + name + " 1,2,3 --parallelism.pipeline-parallel-degree 2",
                     {name, "3 sizes", "one for each of 2"});
  expect_usage_error(
      kVirtual + "--device.type cpu",
      {"--optimizer.virtual-optimizer", "--device.type cpu", "sim, cuda, npu or xpu"});
}

}  // namespace
}  // namespace swapline::trainer
