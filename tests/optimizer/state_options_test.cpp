// Moments of another dtype than the parameters, and fp32 masters of narrow parameters: the bits of
// a reference that keeps all of it on the device, within the bound on memory.
#include "tests/optimizer/reference.h"
#include "tests/optimizer/training.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

namespace swapline::testing {
namespace {

constexpr int kNumSteps = 20;

struct Case {
  std::string name;
  std::optional<at::ScalarType> state_dtype;
  bool master_weights = false;
  AdamKernel kernel = AdamKernel::kAuto;
};

std::vector<Case> cases() {
  return {{"Bf16Moments", at::kBFloat16},
          {"HalfMoments", at::kHalf},
          {"FloatMoments", at::kFloat},
          {"DoubleMoments", at::kDouble},
          {"Masters", std::nullopt, true},
          {"MastersAndBf16Moments", at::kBFloat16, true},
          {"MastersAndDoubleMoments", at::kDouble, true},
          {"PortableBf16Moments", at::kBFloat16, false, AdamKernel::kPortable},
          {"PortableMasters", std::nullopt, true, AdamKernel::kPortable},
          {"PortableMastersAndBf16Moments", at::kBFloat16, true, AdamKernel::kPortable}};
}

AdamOptions options_of(const Case& the_case, StatePlacement placement, int64_t times) {
  AdamOptions options;
  options.placement = placement;
  options.swap_optimizer_times = times;
  options.state_dtype = the_case.state_dtype;
  options.master_weights = the_case.master_weights;
  options.kernel = the_case.kernel;
  return options;
}

AdamSettings variant(int bits) {
  AdamSettings settings;
  settings.lr = 0.01;
  settings.decoupled = (bits & 1) == 0;
  settings.weight_decay = (bits & 2) != 0 ? 0.1 : 0;
  settings.amsgrad = (bits & 4) != 0;
  settings.maximize = (bits & 8) != 0;
  return settings;
}

class StateOptionsBitsTest : public OptimizerTest, public ::testing::WithParamInterface<Case> {
 protected:
  // Trains both on the odd parameters and compares everything after each step.
  void compare(const AdamSettings& settings, const AdamOptions& options, bool late_copies) {
    use_machine({.late_copies = late_copies});
    const auto groups = odd_groups(settings);
    const Gradients gradients(groups, kNumSteps, /*with_gaps=*/true);
    Reference reference(groups, options);
    Adam adam(make_context(), groups, options);
    for (int step = 0; step < kNumSteps; ++step) {
      gradients.set(groups, step);
      if (step % 3 == 1) {
        adam.prefetch();
      }
      for (size_t g = 0; g < groups.size(); ++g) {
        adam.settings(g).lr *= step % 3 == 0 ? 1.5 : 0.8;
        reference.settings(g).lr = adam.settings(g).lr;
      }
      adam.step();
      reference.step();
    }
    expect_equal(snapshot(adam, groups), reference.snapshot());
    EXPECT_EQ(sim().num_races(), 0) << first_race();
  }
};

TEST_P(StateOptionsBitsTest, SwappedStatesGiveTheBitsOfTheReference) {
  for (int bits = 0; bits < 16; ++bits) {
    SCOPED_TRACE("variant " + std::to_string(bits));
    constexpr int64_t kTimes[] = {1, 4, 16};
    compare(variant(bits),
            options_of(GetParam(), StatePlacement::kSwap, kTimes[bits % 3]),
            /*late_copies=*/bits % 4 != 3);
  }
}

TEST_P(StateOptionsBitsTest, ResidentStatesGiveTheBitsOfTheReference) {
  for (const int bits : {0, 3, 6, 11, 12}) {
    SCOPED_TRACE("variant " + std::to_string(bits));
    compare(variant(bits), options_of(GetParam(), StatePlacement::kDevice, 1), false);
  }
}

TEST_P(StateOptionsBitsTest, SlotsAndScratchStayWithinTheBound) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t times : {1, 4, 16}) {
      SCOPED_TRACE(times);
      use_machine();
      const auto groups = plain_groups({{700, 300}, {5000}, {200, 200}}, variant(3), dtype);
      const Gradients gradients(groups, 3, false);
      Adam adam(make_context(), groups, options_of(GetParam(), StatePlacement::kSwap, times));
      const size_t before = sim().memory_stats(0).allocated_bytes;
      sim().reset_peak_memory(0);
      for (int step = 0; step < 3; ++step) {
        gradients.set(groups, step);
        adam.step();
        adam.prefetch();
      }
      const auto stats = adam.stats();
      const size_t held = sim().memory_stats(0).peak_allocated_bytes - before;
      EXPECT_LE(stats.arena_bytes + stats.scratch_bytes,
                stats.state_bytes / static_cast<size_t>(times));
      EXPECT_LE(held, stats.arena_bytes + stats.scratch_bytes + 1024)
          << "the step's number, and the rounding of the scratch";
      EXPECT_GT(held, (stats.arena_bytes + stats.scratch_bytes) / 2);
      adam.drain();
      EXPECT_EQ(sim().memory_stats(0).allocated_bytes, before);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizer,
                         StateOptionsBitsTest,
                         ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

using StateOptionsTest = OptimizerTest;

TEST_F(StateOptionsTest, TheStatesHaveTheDtypesAskedFor) {
  for (const bool swap : {true, false}) {
    const auto placement = swap ? StatePlacement::kSwap : StatePlacement::kDevice;
    for (const auto& the_case : cases()) {
      SCOPED_TRACE(the_case.name);
      const auto groups = odd_groups({});
      const Gradients gradients(groups, 1, false);
      Adam adam(make_context(), groups, options_of(the_case, placement, 4));
      gradients.set(groups, 0);
      adam.step();
      for (const auto& group : groups) {
        for (const auto& param : group.params) {
          const bool has_master = the_case.master_weights && param.scalar_type() == at::kBFloat16;
          const auto updated = has_master ? at::kFloat : param.scalar_type();
          const auto states = adam.state(param);
          EXPECT_EQ(states.size(), has_master ? 4u : 3u);
          for (const auto& [name, state] : states) {
            if (name != "step") {
              EXPECT_EQ(state.device(), swap ? at::Device(at::kCPU) : param.device());
              EXPECT_EQ(state.sizes(), param.sizes());
              EXPECT_EQ(state.strides(), param.strides());
            }
          }
          const auto moment = the_case.state_dtype.value_or(updated);
          EXPECT_EQ(states.at("exp_avg").scalar_type(), moment);
          EXPECT_EQ(states.at("exp_avg_sq").scalar_type(), moment);
          EXPECT_EQ(states.count("master_param"), has_master ? 1u : 0u);
          if (has_master) {
            EXPECT_TRUE(
                at::equal(states.at("master_param").to(at::kBFloat16).cpu(), param.detach().cpu()));
          }
        }
      }
    }
  }
}

TEST_F(StateOptionsTest, BytesAndCopiesAreThoseOfTheDtypes) {
  struct Expected {
    at::ScalarType param;
    Case options;
    size_t bytes_per_element;
    int64_t num_rows;
  };
  for (const auto& [param, options, bytes, num_rows] :
       {Expected{at::kFloat, {"", at::kBFloat16}, 4, 2},
        Expected{at::kBFloat16, {"", at::kFloat}, 8, 2},
        Expected{at::kBFloat16, {"", std::nullopt, true}, 12, 3},
        Expected{at::kBFloat16, {"", at::kBFloat16, true}, 8, 3},
        Expected{at::kFloat, {"", std::nullopt, true}, 8, 2}}) {
    const auto groups = plain_groups({{700, 300}, {5000}}, {}, param);
    const Gradients gradients(groups, 1, false);
    Adam adam(make_context(), groups, options_of(options, StatePlacement::kSwap, 16));
    gradients.set(groups, 0);
    adam.step();
    const auto stats = adam.stats();
    EXPECT_EQ(stats.state_bytes, bytes * 215000);
    EXPECT_EQ(stats.num_copies_in, num_rows * stats.num_chunks);
    EXPECT_EQ(stats.num_copies_out, num_rows * stats.num_chunks);
    EXPECT_EQ(stats.num_launches, stats.num_chunks);
  }
}

TEST_F(StateOptionsTest, NothingIsCastWhereAllDtypesAreOne) {
  const auto groups = odd_groups({});
  Adam adam(make_context(), groups);
  EXPECT_EQ(adam.stats().scratch_bytes, 0u);
}

// What masters are for.
TEST_F(StateOptionsTest, AMasterKeepsWhatItsParameterRoundsAway) {
  for (const bool has_master : {false, true}) {
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device());
    const auto param = at::full({300}, 1, options).requires_grad_(true);
    AdamOptions adam_options;
    adam_options.master_weights = has_master;
    Adam adam(make_context(), {{{param}, {.lr = 1e-3}}}, adam_options);
    for (int step = 0; step < 20; ++step) {
      param.mutable_grad() = at::full({300}, 1, options);
      adam.step();
    }
    const auto value = param.detach().cpu()[0].item<float>();
    EXPECT_NEAR(value, has_master ? 0.98F : 1.0F, 0.002F);
  }
}

TEST_F(StateOptionsTest, TheMasterStartsAsTheParameterIsAtItsFirstUpdateAndIsTheTruthFromThenOn) {
  for (const auto placement : {StatePlacement::kSwap, StatePlacement::kDevice}) {
    const auto options = at::TensorOptions().dtype(at::kBFloat16).device(device());
    const auto param = at::full({300}, 1, options).requires_grad_(true);
    AdamOptions adam_options;
    adam_options.placement = placement;
    adam_options.master_weights = true;
    Adam adam(make_context(), {{{param}, {.lr = 0}}}, adam_options);
    param.detach().fill_(2);
    param.mutable_grad() = at::full({300}, 1, options);
    adam.step();
    EXPECT_EQ(adam.state(param).at("master_param").cpu()[299].item<float>(), 2);
    param.detach().fill_(5);
    adam.step();
    EXPECT_EQ(param.detach().cpu()[299].item<float>(), 2);
    adam.state(param).at("master_param").fill_(3);
    adam.step();
    EXPECT_EQ(param.detach().cpu()[299].item<float>(), 3);
  }
}

}  // namespace
}  // namespace swapline::testing
