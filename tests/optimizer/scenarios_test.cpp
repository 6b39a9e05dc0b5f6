// Situations from training loops that have gone wrong elsewhere.
#include "tests/optimizer/training.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

namespace swapline::testing {
namespace {

AdamOptions plain() {
  AdamOptions options;
  options.placement = StatePlacement::kDevice;
  return options;
}

using ScenariosTest = OptimizerTest;

// Runs the same story with swapped and with resident states and compares everything.
template <typename Story>
void expect_same_story(const std::vector<std::vector<int64_t>>& sizes, const Story& story) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool swap : {false, true}) {
    auto groups = plain_groups(sizes, {.lr = 0.01, .weight_decay = 0.1});
    const auto context = swap ? std::make_shared<SwapContext>(sim::device()) : nullptr;
    Adam adam(context, groups, swap ? AdamOptions() : plain());
    story(adam, groups);
    results[swap ? 1 : 0] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

// Scenario 16.
TEST_F(ScenariosTest, AccumulatedGradientsAndBothKindsOfZeroGrad) {
  for (const bool set_to_none : {true, false}) {
    expect_same_story({{300, 40}, {7}}, [&](Adam& adam, auto& groups) {
      const Gradients gradients(groups, 8, false);
      for (int step = 0; step < 6; ++step) {
        for (const auto& param : groups[0].params) {
          const auto grad =
              at::ones(param.sizes(), param.options().requires_grad(false)).mul(step + 1);
          const int num_microbatches = step == 5 ? 1 : 3;
          for (int i = 0; i < num_microbatches; ++i) {
            at::Tensor& sum = param.mutable_grad();
            if (sum.defined()) {
              sum.add_(grad);
            } else {
              sum = grad.clone();
            }
          }
        }
        adam.step();
        adam.zero_grad(set_to_none);
        EXPECT_EQ(groups[0].params[0].grad().defined(), !set_to_none);
      }
    });
  }
}

// Scenario 20: schedulers change lr and betas of each group at any time, also after prefetch().
TEST_F(ScenariosTest, SettingsAreReadInTheStep) {
  expect_same_story({{300, 40}, {7}}, [&](Adam& adam, auto& groups) {
    const Gradients gradients(groups, 6, false);
    for (int step = 0; step < 6; ++step) {
      gradients.set(groups, step);
      adam.prefetch();
      adam.settings(0).lr = 0.1 / (step + 1);
      adam.settings(0).beta1 = 0.95 - 0.02 * step;
      adam.settings(0).weight_decay = step % 2 == 0 ? 0.2 : 0;
      adam.step();
    }
  });
}

// Scenario 21: frozen at construction, toggled later both ways.
TEST_F(ScenariosTest, ParametersFrozenAndUnfrozenBetweenSteps) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool swap : {false, true}) {
    auto groups = plain_groups({{300, 40}, {5000}, {64}});
    groups[0].params[1].requires_grad_(false);
    const auto context = swap ? make_context() : nullptr;
    Adam adam(context, groups, swap ? AdamOptions() : plain());
    const Gradients gradients(groups, 9, false);
    for (int step = 0; step < 9; ++step) {
      gradients.set(groups, step);
      const size_t frozen = step < 3 ? 1 : step < 6 ? 0 : 2;
      for (size_t i = 0; i < 3; ++i) {
        groups[0].params[i].requires_grad_(i != frozen);
      }
      groups[0].params[frozen].mutable_grad().reset();
      adam.prefetch();
      adam.step();
    }
    results[swap ? 1 : 0] = snapshot(adam, groups);
    EXPECT_EQ(results[swap ? 1 : 0].at("param1.step").item<float>(), 6.0F);
  }
  expect_equal(results[1], results[0]);
}

// Scenario 22: no gradient on even steps, chunk boundaries inside and right after the parameter.
TEST_F(ScenariosTest, StepsAreCountedForEachParameter) {
  expect_same_story({{512, 64}, {300, 40}, {7}}, [&](Adam& adam, auto& groups) {
    const Gradients gradients(groups, 8, false);
    for (int step = 0; step < 8; ++step) {
      gradients.set(groups, step);
      if (step % 2 == 0) {
        groups[0].params[0].mutable_grad().reset();
      }
      adam.step();
    }
    EXPECT_EQ(adam.state(groups[0].params[0]).at("step").template item<float>(), 4.0F);
    EXPECT_EQ(adam.state(groups[0].params[1]).at("step").template item<float>(), 8.0F);
  });
}

TEST_F(ScenariosTest, ChunksWithoutAnyGradientAreNotMoved) {
  auto groups = plain_groups({{512, 64}, {512, 64}});
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(), groups);
  gradients.set(groups, 0);
  groups[0].params[0].mutable_grad().reset();
  adam.step();
  const auto num_with_grad = (adam.stats().num_chunks + 1) / 2;
  EXPECT_EQ(adam.stats().num_copies_in, 2 * num_with_grad);
  const auto moved = adam.stats().num_copies_in;
  adam.zero_grad();
  adam.prefetch();
  adam.step();
  adam.drain();
  EXPECT_EQ(adam.stats().num_copies_out, moved) << "nothing to update, nothing to store";
  EXPECT_EQ(adam.device_state_bytes(), 0u);
}

// Scenario 25.
TEST_F(ScenariosTest, NoStateIsInventedBeforeTheFirstUpdate) {
  for (const bool swap : {false, true}) {
    auto groups = plain_groups({{300, 40}, {7}});
    Adam adam(swap ? make_context() : nullptr, groups, swap ? AdamOptions() : plain());
    EXPECT_TRUE(adam.state(groups[0].params[0]).empty());
    const Gradients gradients(groups, 1, false);
    gradients.set(groups, 0);
    groups[0].params[1].mutable_grad().reset();
    adam.step();
    EXPECT_EQ(adam.state(groups[0].params[0]).size(), 3u);
    EXPECT_TRUE(adam.state(groups[0].params[1]).empty());
  }
}

// Scenarios 6 and 45: states read right after a step with late copies are whole.
TEST_F(ScenariosTest, StatesReadRightAfterAStepAreWhole) {
  use_machine({.late_copies = true});
  expect_same_story({{300, 400}, {7}}, [&](Adam& adam, auto& groups) {
    const Gradients gradients(groups, 3, false);
    for (int step = 0; step < 3; ++step) {
      gradients.set(groups, step);
      adam.step();
      EXPECT_FALSE(
          adam.state(groups[0].params[0]).at("exp_avg").cpu().isnan().any().template item<bool>());
    }
  });
}

// Scenario 45: a change in place on the host takes effect, also one after a prefetch.
TEST_F(ScenariosTest, StatesChangedOnTheHostBetweenStepsCount) {
  expect_same_story({{300, 40}, {7}}, [&](Adam& adam, auto& groups) {
    const Gradients gradients(groups, 4, false);
    for (int step = 0; step < 4; ++step) {
      gradients.set(groups, step);
      if (step > 0) {
        adam.prefetch();
        auto state = adam.state(groups[0].params[0]);
        state.at("exp_avg").mul_(0.5);
        state.at("exp_avg_sq").add_(1);
        state.at("step").add_(2);
      }
      adam.step();
    }
  });
}

TEST_F(ScenariosTest, ATensorOfStatesOutlivesTheOptimizer) {
  at::Tensor kept;
  {
    auto groups = plain_groups({{300, 40}});
    Adam adam(make_context(), groups);
    const Gradients gradients(groups, 1, false);
    gradients.set(groups, 0);
    adam.step();
    kept = adam.state(groups[0].params[0]).at("exp_avg");
    EXPECT_TRUE(kept.is_cpu());
  }
  EXPECT_FALSE(kept.isnan().any().item<bool>());
}

TEST_F(ScenariosTest, AnOptimizerDestroyedRightAfterAStepWaitsForItsCopies) {
  use_machine({.late_copies = true});
  const auto groups = plain_groups({{300, 400}});
  const auto context = make_context();
  const Gradients gradients(groups, 1, false);
  {
    Adam adam(context, groups);
    gradients.set(groups, 0);
    adam.step();
  }
  const auto reused = context->host().allocate(300 * 400 * 4);
  context->settle_all();
}

TEST_F(ScenariosTest, TwoOptimizersShareAContext) {
  std::map<std::string, at::Tensor> alone;
  for (const bool together : {false, true}) {
    const auto first = plain_groups({{300, 40}});
    const auto second = plain_groups({{200, 70}});
    const auto context = make_context();
    Adam adam(context, first);
    Adam other(context, second);
    const Gradients gradients(first, 4, false);
    const Gradients other_gradients(second, 4, false);
    for (int step = 0; step < 4; ++step) {
      gradients.set(first, step);
      other_gradients.set(second, step);
      if (together) {
        adam.prefetch();
        other.prefetch();
        other.step();
      }
      adam.step();
    }
    if (together) {
      expect_equal(snapshot(adam, first), alone);
    } else {
      alone = snapshot(adam, first);
    }
  }
}

// The parameters' device counts, not the current one.
TEST_F(ScenariosTest, TheSecondDeviceWhileTheFirstIsCurrent) {
  std::map<std::string, at::Tensor> results[2];
  for (const int index : {0, 1}) {
    auto groups = plain_groups({{300, 40}, {7}});
    Gradients gradients(groups, 3, false);
    if (index == 1) {
      for (auto& param : groups[0].params) {
        param = param.detach().to(device(1)).requires_grad_(true);
      }
    }
    const auto before = sim().memory_stats(0).num_allocations;
    Adam adam(std::make_shared<SwapContext>(device(index)), groups);
    for (int step = 0; step < 3; ++step) {
      for (const auto& param : groups[0].params) {
        param.mutable_grad() =
            at::ones(param.sizes(), param.options().requires_grad(false)).mul_(step + 1);
      }
      adam.step();
    }
    adam.drain();
    if (index == 1) {
      EXPECT_EQ(sim().memory_stats(0).num_allocations, before);
    }
    results[index] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

TEST_F(ScenariosTest, AnUpdateCountsAsAChangeOfTheParameter) {
  for (const bool swap : {false, true}) {
    auto groups = plain_groups({{300, 40}});
    Adam adam(swap ? make_context() : nullptr, groups, swap ? AdamOptions() : plain());
    const Gradients gradients(groups, 1, false);
    gradients.set(groups, 0);
    const auto version = groups[0].params[0]._version();
    adam.step();
    EXPECT_EQ(groups[0].params[0]._version(), version + 1);
  }
}

}  // namespace
}  // namespace swapline::testing
