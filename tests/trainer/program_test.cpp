// The program from outside: exit status, messages, summary.json, trace, dry run.
#include "tests/trainer/program_run.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

std::set<std::string> keys_of(const nlohmann::json& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.items()) {
    keys.insert(key);
  }
  return keys;
}

void expect_one_line_error(const ProgramRun& run, int status, const std::string& part) {
  EXPECT_EQ(run.status, status) << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  EXPECT_TRUE(run.err.starts_with("swapline: ")) << run.err;
  EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
}

TEST(Program, TrainsAndPrintsALineAStep) {
  const ProgramRun run = train_small();
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("step:  1  loss: "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("step:  4  loss: "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("virtual"), std::string::npos) << run.out;
  EXPECT_EQ(run.err, "");
}

TEST(Program, SummaryHasEveryFieldOfTheFormat) {
  const nlohmann::json summary = train_small().summary;
  EXPECT_EQ(keys_of(summary),
            (std::set<std::string>{"device",
                                   "model",
                                   "steps",
                                   "peak_allocated_bytes",
                                   "peak_reserved_bytes",
                                   "peak_bytes_by_kind",
                                   "host",
                                   "layer_input",
                                   "optimizer",
                                   "races",
                                   "validation"}));
  EXPECT_EQ(keys_of(summary["device"]),
            (std::set<std::string>{"type", "preset", "count", "capacity_bytes"}));
  EXPECT_EQ(keys_of(summary["model"]),
            (std::set<std::string>{"name", "flavor", "num_parameters", "num_layers"}));
  EXPECT_EQ(keys_of(summary["steps"][0]),
            (std::set<std::string>{"step",
                                   "loss",
                                   "grad_norm",
                                   "step_ms",
                                   "optimizer_ms",
                                   "exposed_ms",
                                   "peak_allocated_bytes"}));
  EXPECT_EQ(keys_of(summary["peak_bytes_by_kind"]),
            (std::set<std::string>{
                "parameters", "gradients", "optimizer_states", "layer_inputs", "other"}));
  EXPECT_EQ(keys_of(summary["host"]),
            (std::set<std::string>{"requested_bytes",
                                   "pinned_bytes",
                                   "peak_pinned_bytes",
                                   "pinned_allocations_after_first_step"}));
  EXPECT_EQ(keys_of(summary["layer_input"]),
            (std::set<std::string>{"enabled",
                                   "swapped_bytes_per_step",
                                   "exposed_ms_per_step",
                                   "peak_resident_inputs",
                                   "prefetch_hits",
                                   "prefetch_misses",
                                   "prefetch_misses_after_first_step",
                                   "kept_on_device"}));
  EXPECT_EQ(keys_of(summary["optimizer"]),
            (std::set<std::string>{"swap",
                                   "num_chunks",
                                   "num_slots",
                                   "arena_bytes",
                                   "scratch_bytes",
                                   "kept_bytes",
                                   "mapped_bytes",
                                   "state_bytes",
                                   "state_bytes_on_device_outside_step",
                                   "h2d_ms",
                                   "d2h_ms",
                                   "update_ms",
                                   "step_ms",
                                   "exposed_ms"}));
  EXPECT_EQ(summary["steps"].size(), 4U);
  EXPECT_EQ(summary["races"], 0);
  EXPECT_EQ(summary["model"]["num_parameters"], 5'246'208);
}

TEST(Program, PeakByKindAddsUpToThePeak) {
  const nlohmann::json summary = train_small().summary;
  size_t sum = 0;
  for (const auto& [kind, bytes] : summary["peak_bytes_by_kind"].items()) {
    sum += bytes.get<size_t>();
  }
  EXPECT_EQ(sum, summary["peak_allocated_bytes"]);
  // 4 bytes a parameter, each tensor rounded up to 512.
  const auto parameters = summary["peak_bytes_by_kind"]["parameters"].get<size_t>();
  EXPECT_GE(parameters, size_t{4} * 5'246'208);
  EXPECT_LE(parameters, size_t{4} * 5'246'208 + 57 * 512);
  EXPECT_GT(summary["peak_bytes_by_kind"]["gradients"], parameters / 2);
}

TEST(Program, SameRunGivesTheSameFigures) {
  const ProgramRun first = train_small();
  const ProgramRun second = train_small();
  EXPECT_EQ(first.summary.dump(), second.summary.dump());
}

TEST(Program, ModelOnTheSimulatedDeviceHasTheCpusLosses) {
  const std::string fixed_parameters = "--optimizer.lr 0 ";
  EXPECT_EQ(losses_of(train_small(fixed_parameters)),
            losses_of(train_small(fixed_parameters + "--device.type cpu")));
}

TEST(Program, AccumulationAndBfloat16Train) {
  const ProgramRun run =
      train_small("--training.global-batch-size 6 --training.dtype bfloat16 --optimizer.name Adam");
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_LT(run.summary["steps"][3]["loss"], run.summary["steps"][0]["loss"]);
}

TEST(Program, LogFrequencyThinsTheLinesAndNotTheSummary) {
  const ProgramRun run = train_small("--metrics.log-freq 3");
  EXPECT_EQ(run.out.find("step:  2"), std::string::npos);
  EXPECT_NE(run.out.find("step:  3"), std::string::npos);
  EXPECT_EQ(run.summary["steps"].size(), 4U);
}

TEST(Program, DryRunHasTimesAndMemoryButNoLosses) {
  const ProgramRun run = run_program(
      "train --model.flavor 8B --device.dry-run --training.steps 2 --training.seq-len 4096 "
      "--training.local-batch-size 1 --training.dtype bfloat16");
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(run.summary["steps"][1]["loss"].is_null());
  EXPECT_TRUE(run.summary["steps"][1]["grad_norm"].is_null());
  EXPECT_GT(run.summary["steps"][1]["step_ms"], 100.0);
  EXPECT_GT(run.summary["peak_allocated_bytes"], size_t{8'030'261'248} * 2 * 4);
  EXPECT_NE(run.out.find("n/a"), std::string::npos);
}

TEST(Program, DryRunSeesTheTimesAndMemoryOfTheRealRun) {
  const ProgramRun real = train_small();
  const ProgramRun dry = train_small("--device.dry-run");
  EXPECT_EQ(dry.summary["peak_allocated_bytes"], real.summary["peak_allocated_bytes"]);
  EXPECT_EQ(dry.summary["steps"][3]["step_ms"], real.summary["steps"][3]["step_ms"]);
}

TEST(Program, TraceIsJsonWithEvents) {
  const ProgramRun run = train_small("--profiling.enable-trace");
  ASSERT_EQ(run.status, 0) << run.err;
  const auto trace = nlohmann::json::parse(run.trace, nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  EXPECT_FALSE(trace["traceEvents"].empty());
}

TEST(Program, DevicesListsThePresets) {
  const ProgramRun run = run_program("devices");
  EXPECT_EQ(run.status, 0);
  for (const std::string preset : {"ascend-910b", "a100-80g", "h100-sxm", "rtx-4090", "tiny"}) {
    EXPECT_NE(run.out.find(preset), std::string::npos) << preset;
  }
}

TEST(ProgramErrors, WrongUseExitsWithTwo) {
  expect_one_line_error(run_program("train --no.such 1"), 2, "--no.such");
  expect_one_line_error(run_program("train --training.steps none"), 2, "--training.steps");
  expect_one_line_error(run_program(""), 2, "train, devices");
}

TEST(ProgramErrors, FailureAtRunTimeExitsWithOne) {
  expect_one_line_error(train_small("--data.path /nowhere"), 1, "--data.path");
  expect_one_line_error(train_small("--device.type cuda"), 1, "--device.type");
  expect_one_line_error(train_small("--device.type npu"), 1, "--device.type");
  expect_one_line_error(train_small("--device.type xpu"), 1, "libtorch_xpu.so");
  expect_one_line_error(train_small("--job.dump-folder /proc/nowhere"), 1, "--job.dump-folder");
}

TEST(ProgramErrors, FullDeviceNamesUsedCapacityAndOptions) {
  const ProgramRun run = train_small("--device.memory 40MiB");
  expect_one_line_error(run, 1, "out of memory");
  for (const std::string part :
       {"used ", "capacity 40", "--optimizer.swap-optimizer", "--swap-layer-input.enable"}) {
    EXPECT_NE(run.err.find(part), std::string::npos) << part << ": " << run.err;
  }
}

}  // namespace
}  // namespace swapline::trainer
