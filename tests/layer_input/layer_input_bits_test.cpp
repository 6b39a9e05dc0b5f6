// Twenty steps with swap and without, equal to the last bit: eager and late copies, jitter, slow
// links, odd sizes, gradient accumulation, eval between.
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <ostream>
#include <string>
#include <tuple>

namespace swapline {
namespace {

using testing::MachineOptions;
using testing::SwappedLayers;
using testing::TrainOptions;

struct NamedMachine {
  std::string name;
  MachineOptions options;
};

void PrintTo(const NamedMachine& machine, std::ostream* out) {
  *out << machine.name;
}

std::vector<NamedMachine> machines() {
  return {{"Eager", {}},
          {"Late", {.late_copies = true}},
          {"LateSlow", {.late_copies = true, .copy_slowdown = 40}},
          {"LateJitter", {.late_copies = true, .copy_jitter = 30, .seed = 5}},
          {"EagerSlow", {.copy_slowdown = 1000}}};
}

struct NamedRun {
  std::string name;
  TrainOptions options;
};

void PrintTo(const NamedRun& run, std::ostream* out) {
  *out << run.name;
}

std::vector<NamedRun> runs() {
  return {{"Plain", {.steps = 20}},
          {"Accumulated", {.steps = 20, .accumulate = 3}},
          {"EvalBetween", {.steps = 20, .accumulate = 2, .eval_between = true}},
          {"OddSizes", {.model = {.num_layers = 5, .batch = 17, .width = 13}, .steps = 20}},
          {"OneElement", {.model = {.num_layers = 3, .batch = 1, .width = 1}, .steps = 20}},
          {"Dropout", {.model = {.dropout = 0.4}, .steps = 20}},
          {"Synced", {.steps = 20, .synced = true}}};
}

class LayerInputBitsTest
    : public testing::SimTest,
      public ::testing::WithParamInterface<std::tuple<NamedMachine, NamedRun>> {};

TEST_P(LayerInputBitsTest, TwentyStepsAreEqualWithAndWithoutSwap) {
  const auto& [on, run] = GetParam();
  use_machine(on.options);
  const auto outcome = [&run = run](bool enabled) {
    LayerInputOptions options;
    options.enabled = enabled;
    options.num_layers = run.options.model.num_layers;
    SwappedLayers swapped(options);
    at::manual_seed(1);
    auto result = testing::train(run.options, &swapped.inputs);
    EXPECT_EQ(swapped.inputs.stats().num_swapped_out > 0, enabled);
    return result;
  };
  const auto expected = outcome(false);
  const auto got = outcome(true);
  EXPECT_TRUE(same_bits(expected, got));
  // The comparison means something: training moves the loss, and it stays finite.
  EXPECT_TRUE(at::isfinite(got.losses.back()).item<bool>());
  EXPECT_FALSE(testing::same_bits(got.losses.front(), got.losses.back()));
}

INSTANTIATE_TEST_SUITE_P(All,
                         LayerInputBitsTest,
                         ::testing::Combine(::testing::ValuesIn(machines()),
                                            ::testing::ValuesIn(runs())),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace swapline
