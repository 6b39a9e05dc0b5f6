// Random runs on random machines against the same run without swap on a calm one: schedules, ranks,
// lanes, stages, recompute, sizes, failing pins, evaluation, layers that throw. 500 cases; more
// with RC_PARAMS="max_success=1000", a failing one again with the seed that it prints.
#include "sim/torch/idle.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"
#include "tests/trainer/pipeline/tiny_run.h"

#include <cstdlib>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <rapidcheck.h>

namespace swapline::trainer {
namespace {

using swapline::testing::message_of;
using swapline::testing::same_bits;

struct Case {
  TinyRunOptions run;
  sim::Faults faults;
  bool evaluates = false;
  int64_t failing_run = -1;  // of a layer, in the second step
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  const TinyRunOptions& run = c.run;
  out << (run.has_experts ? "deepseek_v3" : "llama3") << (run.has_tied_parameters ? " tied" : "")
      << " " << run.schedule << " ranks " << run.num_ranks << " lanes " << run.num_lanes
      << " micro-batches " << run.num_microbatches << " overlap " << run.overlap << " layers";
  for (const int64_t layers : run.layers_per_stage) {
    out << " " << layers;
  }
  out << " recompute " << run.recompute.mode << " block " << run.recompute.layers_per_block
      << " first " << run.recompute.first_layers << " ahead " << run.recompute.recompute_ahead
      << " prefetch " << run.swap.prefetch << " keep_last " << run.swap.keep_last.value_or(-1)
      << " swapping_out " << run.swap.max_swapping_out.value_or(-1) << " min "
      << run.swap.min_bytes.value << " host " << run.swap.max_host_bytes.value << " late "
      << run.late_copies << " slow " << c.faults.copy_slowdown << " jitter " << c.faults.copy_jitter
      << " pin " << c.faults.fail_pinned_allocation << " eval " << c.evaluates << " throws "
      << c.failing_run;
  return out;
}

// Small ones first: 0 stands for what most cases should have.
int64_t below(int64_t end) {
  return *rc::gen::inRange<int64_t>(0, end);
}

std::optional<int64_t> any_or_learned(int64_t end) {
  const int64_t value = below(end + 1) - 1;
  return value < 0 ? std::nullopt : std::optional<int64_t>(value);
}

TinyRunOptions any_run() {
  TinyRunOptions run;
  run.num_lanes = below(3) == 0 ? 2 : 1;
  run.has_experts = run.num_lanes > 1 || below(3) == 0;
  run.has_tied_parameters = run.num_lanes == 1 && below(3) == 0;
  run.num_ranks = static_cast<int>(1 + below(4));
  run.schedule =
      std::vector<std::string>{"GPipe", "1F1B", "Interleaved1F1B", "DualPipeV"}[below(4)];
  if (run.schedule == "DualPipeV" && run.num_ranks > 1) {
    run.num_ranks = static_cast<int>(2 + below(2));
    run.num_microbatches = static_cast<int>(2 * run.num_ranks + below(2));
  } else {
    run.num_microbatches = static_cast<int>(1 + below(5));
  }
  run.overlap = run.num_lanes > 1 && run.schedule != "GPipe" && below(2) == 0;
  const int64_t most_layers = run.num_ranks > 2 ? 2 : 4;
  run.layers_per_stage = {1 + below(most_layers), 1 + below(most_layers)};
  // One case in six without recompute, or with recompute of parts: then nothing is swapped.
  run.recompute.mode = below(6) < 5        ? "full"
                       : run.num_lanes > 1 ? "none"
                       : below(2) == 0     ? "none"
                                           : "selective";
  if (run.recompute.mode == "full" && run.num_lanes == 1) {
    run.recompute.layers_per_block = 1 + below(2);
    run.recompute.first_layers = below(4) == 3 ? 1 + below(2) : 0;
    run.recompute.recompute_ahead = run.num_ranks > 1 && below(3) == 0;
  }
  return run;
}

Case any_case() {
  Case c;
  c.run = any_run();
  c.run.swap.enable = true;
  c.run.swap.prefetch = below(3);
  c.run.swap.keep_last = any_or_learned(3);
  c.run.swap.max_swapping_out = any_or_learned(3);
  c.run.swap.min_bytes.value = below(8) == 7 ? 4096 : 0;
  c.run.swap.max_host_bytes.value = below(4) == 3 ? 3000 : 0;
  c.run.late_copies = below(2) == 0;
  c.faults.copy_slowdown = std::vector<double>{1, 20, 1000}[below(3)];
  c.faults.copy_jitter = below(3) == 0 ? 30 : 0;
  c.faults.seed = static_cast<uint64_t>(below(1000));
  c.faults.fail_pinned_allocation = below(4) == 3 ? below(3) : -1;
  c.evaluates = below(3) == 0;
  c.failing_run = below(4) == 3 ? below(60) : -1;
  return c;
}

// The gradients of two steps, and none when a layer gives up.
struct Gradients {
  std::vector<at::Tensor> first;
  std::vector<at::Tensor> second;
  bool has_given_up = false;
};

Gradients take_steps(TinyRun& run, const Case& c) {
  Gradients gradients;
  run.backward();
  gradients.first = run.gradients();
  run.descend();
  if (c.evaluates) {
    run.validate();
    if (c.run.num_lanes == 1) {
      run.evaluate();
    }
  }
  run.fail_after(c.failing_run);
  const std::string error = message_of([&] { run.backward(); });
  gradients.has_given_up = !error.empty();
  if (gradients.has_given_up) {
    RC_ASSERT(error.find("a layer gives up") != std::string::npos);
  } else {
    gradients.second = run.gradients();
  }
  return gradients;
}

// Everything else makes more of them stay, by request or of need.
bool has_strict_bound(const Case& c) {
  return c.run.swap.max_swapping_out == 1 && c.run.swap.prefetch <= 1 &&
         c.run.swap.keep_last.value_or(0) == 0 && c.run.swap.min_bytes.value == 0 &&
         c.run.swap.max_host_bytes.value == 0 && c.faults.fail_pinned_allocation < 0 &&
         !c.run.recompute.recompute_ahead;
}

Gradients run_with_swap(const Case& c) {
  TinyRun run(c.run);
  sim::simulator().set_faults(c.faults);
  Gradients gradients = take_steps(run, c);
  if (run.has_inputs() && !gradients.has_given_up) {
    int64_t num_swapped = 0;
    for (size_t device = 0; device < run.num_devices(); ++device) {
      const LayerInputStats stats = run.stats(device);
      num_swapped += stats.num_swapped_out;
      if (has_strict_bound(c)) {
        RC_ASSERT(stats.peak_resident_inputs <= 2);
      }
    }
    RC_CLASSIFY(num_swapped > 0, "swaps");
    RC_ASSERT(run.pinned_input_bytes() == 0U);
    for (size_t device = 0; device < run.num_devices(); ++device) {
      RC_ASSERT(run.stats(device).resident_inputs == 0);
    }
  }
  RC_CLASSIFY(gradients.has_given_up, "gives up");
  return gradients;
}

Gradients run_without_swap(Case c) {
  c.run.swap = {};
  c.run.late_copies = false;
  TinyRun run(c.run);
  return take_steps(run, c);
}

void check_machine() {
  sim::wait_until_idle();
  RC_LOG() << (sim::simulator().num_races() == 0 ? ""
                                                 : sim::simulator().races().front().describe());
  RC_ASSERT(sim::simulator().num_races() == 0);
  RC_ASSERT(sim::simulator().live_bytes() == 0U);
}

class PipelineFuzzTest : public swapline::testing::SimTest {};

TEST_F(PipelineFuzzTest, AnyRunHasTheBitsOfTheRunWithoutSwap) {
  // Read by rapidcheck at its first check; what the caller has set stays.
  setenv("RC_PARAMS", "max_success=500", /*overwrite=*/0);
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    RC_LOG() << c << "\n";
    const Gradients found = run_with_swap(c);
    check_machine();
    const Gradients expected = run_without_swap(c);
    check_machine();
    RC_ASSERT(found.has_given_up == expected.has_given_up);
    RC_ASSERT(same_bits(found.first, expected.first));
    RC_ASSERT(same_bits(found.second, expected.second));
  }));
}

}  // namespace
}  // namespace swapline::trainer
