// Strict layer-input swap in pipeline schedules with hints: no misses, at most one input for each
// direction besides the running layer's, and no time lost while a copy is shorter than a layer.
#include "tests/layer_input/pipeline_stage.h"

#include <ostream>
#include <string>
#include <vector>

namespace swapline {
namespace {

using testing::all_forward_all_backward;
using testing::interleaved;
using testing::one_forward_one_backward;
using testing::PipelineStage;
using testing::same_bits;
using testing::Slot;
using testing::stage_options;
using testing::SwappedLayers;

struct Schedule {
  std::string name;
  std::vector<Slot> slots;
};

void PrintTo(const Schedule& schedule, std::ostream* out) {
  *out << schedule.name;
}

std::vector<Schedule> schedules() {
  return {{"OneForwardOneBackwardLastStage", one_forward_one_backward(6, 1)},
          {"OneForwardOneBackwardTwoAhead", one_forward_one_backward(6, 2)},
          {"OneForwardOneBackwardFourAhead", one_forward_one_backward(8, 4)},
          {"GPipeFirstFirst", all_forward_all_backward(5, false)},
          {"GPipeLastFirst", all_forward_all_backward(5, true)},
          {"InterleavedThreeAhead", interleaved(6, 3)},
          {"InterleavedFiveAhead", interleaved(4, 5)}};
}

struct Outcome {
  std::vector<at::Tensor> grads;
  LayerInputStats stats;
  double step_ns = 0;
};

Outcome run(const Schedule& schedule, const LayerInputOptions& options, bool hinted = true) {
  SwappedLayers swapped(options, testing::timed());
  PipelineStage stage(256, 2);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    const double before = testing::device_ns();
    stage.run(swapped.inputs, schedule.slots, hinted);
    outcome.step_ns = testing::device_ns() - before;
  }
  outcome.grads = stage.grads_on_cpu();
  outcome.stats = swapped.inputs.stats();
  EXPECT_EQ(outcome.stats.resident_inputs, 0);
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
  return outcome;
}

class LayerInputPipelineTest : public testing::SimTest,
                               public ::testing::WithParamInterface<Schedule> {};

TEST_P(LayerInputPipelineTest, WithHintsNothingIsMissedNorWaitedForAndTwoAreResident) {
  for (const double slowdown : {1.0, 4.0}) {
    use_machine({.late_copies = true, .copy_slowdown = slowdown});
    const Outcome plain = run(GetParam(), stage_options(1, /*enabled=*/false));
    const Outcome swapped = run(GetParam(), stage_options(1));
    EXPECT_TRUE(same_bits(plain.grads, swapped.grads));
    EXPECT_EQ(swapped.stats.num_prefetch_misses, 0);
    EXPECT_LE(swapped.stats.peak_resident_inputs, 2);
    EXPECT_EQ(swapped.stats.num_kept_on_device, 0);
    EXPECT_EQ(swapped.stats.exposed_out_ms + swapped.stats.exposed_in_ms, 0);
    EXPECT_LE(swapped.step_ns, plain.step_ns * 1.001);
  }
}

TEST_P(LayerInputPipelineTest, OnASlowLinkTwoAreResidentAllTheSame) {
  use_machine({.late_copies = true, .copy_slowdown = 200});
  const Outcome plain = run(GetParam(), stage_options(1, /*enabled=*/false));
  const Outcome swapped = run(GetParam(), stage_options(1));
  EXPECT_TRUE(same_bits(plain.grads, swapped.grads));
  EXPECT_EQ(swapped.stats.num_prefetch_misses, 0);
  EXPECT_LE(swapped.stats.peak_resident_inputs, 2);
  EXPECT_GT(swapped.stats.exposed_out_ms, 0);
}

TEST_P(LayerInputPipelineTest, WithoutHintsItIsRightAndMissesOnlyFirstInputs) {
  use_machine({.late_copies = true, .copy_slowdown = 20});
  const Outcome plain = run(GetParam(), stage_options(1, /*enabled=*/false), false);
  const Outcome swapped = run(GetParam(), stage_options(1), false);
  EXPECT_TRUE(same_bits(plain.grads, swapped.grads));
  EXPECT_LE(swapped.stats.num_prefetch_misses,
            3 * static_cast<int64_t>(GetParam().slots.size()) / 2);
  EXPECT_LE(swapped.stats.peak_resident_inputs, 2);
}

INSTANTIATE_TEST_SUITE_P(All,
                         LayerInputPipelineTest,
                         ::testing::ValuesIn(schedules()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace swapline
