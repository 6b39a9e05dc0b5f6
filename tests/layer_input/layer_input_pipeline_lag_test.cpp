// The learned lag, the default, where passes interleave: step by step no more memory than strict,
// never slower, the same bits; also when the number of micro-batches changes on the way.
#include "tests/layer_input/pipeline_stage.h"

#include <algorithm>
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

struct Step {
  size_t peak_allocated = 0;
  size_t peak_reserved = 0;
  double ns = 0;
  int64_t peak_resident = 0;
};

struct Outcome {
  std::vector<Step> steps;
  std::vector<at::Tensor> grads;
};

struct Plan {
  std::string name;
  std::vector<std::vector<Slot>> steps;
  bool hinted = true;
};

void PrintTo(const Plan& plan, std::ostream* out) {
  *out << plan.name;
}

std::vector<std::vector<Slot>> repeated(const std::vector<Slot>& slots, int times = 5) {
  return std::vector<std::vector<Slot>>(static_cast<size_t>(times), slots);
}

// Gradient accumulation without a pipeline: each backward follows its forward.
std::vector<std::vector<Slot>> accumulated(const std::vector<int64_t>& microbatches) {
  std::vector<std::vector<Slot>> steps;
  for (const int64_t each : microbatches) {
    steps.push_back(one_forward_one_backward(each, 1));
  }
  return steps;
}

std::vector<Plan> plans() {
  const std::vector<int64_t> growing = {1, 1, 1, 2, 2, 4, 1, 4, 8, 8, 1};
  std::vector<std::vector<Slot>> more_in_flight;
  for (const int64_t ahead : {1, 1, 2, 2, 3, 3, 4, 1, 4}) {
    more_in_flight.push_back(one_forward_one_backward(6, ahead));
  }
  std::vector<std::vector<Slot>> more_at_once;
  for (const int64_t num : {2, 2, 2, 4, 4, 2, 8, 8}) {
    more_at_once.push_back(all_forward_all_backward(num, false));
  }
  return {{"LastStage", repeated(one_forward_one_backward(6, 1))},
          {"ThreeAhead", repeated(one_forward_one_backward(6, 3))},
          {"ThreeAheadUnhinted", repeated(one_forward_one_backward(6, 3)), false},
          {"GPipeFirstFirst", repeated(all_forward_all_backward(4, false))},
          {"GPipeLastFirst", repeated(all_forward_all_backward(4, true))},
          {"GPipeUnhinted", repeated(all_forward_all_backward(4, false)), false},
          {"Interleaved", repeated(interleaved(4, 3))},
          {"AccumulationChanges", accumulated(growing), false},
          {"AccumulationChangesHinted", accumulated(growing)},
          {"MorePassesInFlight", more_in_flight},
          {"MorePassesAtOnce", more_at_once}};
}

Outcome run(const Plan& plan, int64_t most) {
  SwappedLayers swapped(stage_options(most));
  PipelineStage stage(512, 2);
  Outcome outcome;
  for (const std::vector<Slot>& slots : plan.steps) {
    swapped.inputs.reset_stats();
    sim::simulator().reset_peak_memory(0);
    const double before = testing::device_ns();
    stage.run(swapped.inputs, slots, plan.hinted);
    Step step;
    step.ns = testing::device_ns() - before;
    step.peak_allocated = sim::simulator().memory_stats(0).peak_allocated_bytes;
    step.peak_reserved = sim::simulator().memory_stats(0).peak_reserved_bytes;
    step.peak_resident = swapped.inputs.stats().peak_resident_inputs;
    outcome.steps.push_back(step);
    outcome.grads = stage.grads_on_cpu();
    stage.clear_grads();
  }
  return outcome;
}

size_t most_reserved(const Outcome& outcome) {
  size_t most = 0;
  for (const Step& step : outcome.steps) {
    most = std::max(most, step.peak_reserved);
  }
  return most;
}

class LayerInputPipelineLagTest : public testing::SimTest,
                                  public ::testing::WithParamInterface<Plan> {};

TEST_P(LayerInputPipelineLagTest, EachStepTakesNoMoreMemoryAndTimeThanStrict) {
  for (const double slowdown : {1.0, 100.0}) {
    SCOPED_TRACE("slowdown " + std::to_string(slowdown));
    use_machine({.late_copies = true, .copy_slowdown = slowdown});
    const Outcome strict = run(GetParam(), 1);
    use_machine({.late_copies = true, .copy_slowdown = slowdown});
    const Outcome learned = run(GetParam(), kAuto);
    EXPECT_TRUE(same_bits(strict.grads, learned.grads));
    for (size_t i = 0; i < strict.steps.size(); ++i) {
      SCOPED_TRACE("step " + std::to_string(i));
      EXPECT_LE(learned.steps[i].peak_allocated, strict.steps[i].peak_allocated);
      EXPECT_LE(learned.steps[i].ns, strict.steps[i].ns * 1.0001);
      EXPECT_LE(strict.steps[i].peak_resident, 2);
    }
    // By the step, a segment of the allocator more is taken while it learns.
    EXPECT_LE(most_reserved(learned), most_reserved(strict));
  }
}

class LayerInputNamedPassesTest : public testing::SimTest {};

TEST_F(LayerInputNamedPassesTest, AutoIsStrictWherePassesAreNamed) {
  const Plan plan = {"", repeated(all_forward_all_backward(4, false))};
  use_machine({.late_copies = true, .copy_slowdown = 100});
  const Outcome strict = run(plan, 1);
  use_machine({.late_copies = true, .copy_slowdown = 100});
  const Outcome learned = run(plan, kAuto);
  EXPECT_EQ(learned.steps.back().ns, strict.steps.back().ns);
  EXPECT_EQ(learned.steps.back().peak_resident, strict.steps.back().peak_resident);
}

INSTANTIATE_TEST_SUITE_P(All,
                         LayerInputPipelineLagTest,
                         ::testing::ValuesIn(plans()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace swapline
