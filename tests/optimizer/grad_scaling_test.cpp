// Gradient scaling, skipped steps and learning rates on the device, against torch's fused kernel on
// whole tensors on the host.
#include "tests/optimizer/training.h"
#include "tests/support/errors.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

namespace swapline::testing {
namespace {

constexpr int kNumSteps = 20;
const std::vector<std::vector<int64_t>> kSizes = {{300, 70}, {33}, {}};

AdamOptions placed(bool swap) {
  AdamOptions options;
  options.placement = swap ? StatePlacement::kSwap : StatePlacement::kDevice;
  options.swap_optimizer_times = 5;
  return options;
}

at::Tensor on_device(float value) {
  return at::full({1}, value, at::TensorOptions().dtype(at::kFloat).device(sim::device()));
}

class GradScalingTest : public OptimizerTest {
 protected:
  // torch.optim's fused step with a GradScaler, on the host: the kernel, and the step taken back
  // where it was skipped.
  struct HostAdamW {
    explicit HostAdamW(const AdamGroup& group) {
      for (const auto& param : group.params) {
        params.push_back(param.detach().cpu().clone());
        exp_avgs.push_back(at::zeros_like(params.back()));
        exp_avg_sqs.push_back(at::zeros_like(params.back()));
        steps.push_back(at::full({}, 0.0F));
      }
    }

    void step(const AdamGroup& group, std::optional<float> scale, bool is_inf) {
      std::vector<at::Tensor> grads;
      std::vector<at::Tensor> updated[4];
      for (size_t i = 0; i < params.size(); ++i) {
        if (group.params[i].grad().defined()) {
          grads.push_back(group.params[i].grad().cpu());
          steps[i].add_(1);
          updated[0].push_back(params[i]);
          updated[1].push_back(exp_avgs[i]);
          updated[2].push_back(exp_avg_sqs[i]);
          updated[3].push_back(steps[i]);
        }
      }
      const auto tensor = [](float value) { return at::full({1}, value); };
      const auto& s = group.settings;
      at::_fused_adamw_(updated[0],
                        grads,
                        updated[1],
                        updated[2],
                        {},
                        updated[3],
                        s.lr,
                        s.beta1,
                        s.beta2,
                        s.weight_decay,
                        s.eps,
                        /*amsgrad=*/false,
                        s.maximize,
                        scale ? std::optional(tensor(*scale)) : std::nullopt,
                        std::optional(tensor(is_inf ? 1 : 0)));
      for (const at::Tensor& step : updated[3]) {
        step.sub_(is_inf ? 1 : 0);
      }
    }

    std::vector<at::Tensor> params;
    std::vector<at::Tensor> exp_avgs;
    std::vector<at::Tensor> exp_avg_sqs;
    std::vector<at::Tensor> steps;
  };

  static void expect_same(Adam& adam, const AdamGroup& group, const HostAdamW& host) {
    for (size_t i = 0; i < group.params.size(); ++i) {
      EXPECT_TRUE(at::equal(group.params[i].detach().cpu(), host.params[i])) << i;
      const auto state = adam.state(group.params[i]);
      EXPECT_TRUE(at::equal(state.at("exp_avg").cpu(), host.exp_avgs[i])) << i;
      EXPECT_TRUE(at::equal(state.at("exp_avg_sq").cpu(), host.exp_avg_sqs[i])) << i;
      EXPECT_EQ(state.at("step").item<float>(), host.steps[i].item<float>()) << i;
    }
  }
};

TEST_F(GradScalingTest, ScaledGradientsAndSkippedStepsHaveTheBitsOfTorchsKernel) {
  for (const bool swap : {false, true}) {
    SCOPED_TRACE(swap ? "swapped" : "plain");
    const auto groups = plain_groups(kSizes, {.lr = 0.01, .weight_decay = 0.1});
    HostAdamW host(groups[0]);
    Adam adam(swap ? make_context() : nullptr, groups, placed(swap));
    const Gradients gradients(groups, kNumSteps, /*with_gaps=*/true);
    for (int step = 0; step < kNumSteps; ++step) {
      gradients.set(groups, step);
      const bool is_inf = step % 4 == 0;  // the very first step too
      host.step(groups[0], 8.0F, is_inf);
      adam.step({on_device(8), on_device(is_inf ? 1 : 0)});
      if (step % 7 == 6) {
        expect_same(adam, groups[0], host);  // reading in between changes nothing
      }
    }
    expect_same(adam, groups[0], host);
  }
}

// A step without scaling between such with it, and a step count that the user sets back.
TEST_F(GradScalingTest, ScalingMayComeAndGo) {
  for (const bool swap : {false, true}) {
    SCOPED_TRACE(swap ? "swapped" : "plain");
    const auto groups = plain_groups(kSizes, {.lr = 0.01});
    HostAdamW host(groups[0]);
    Adam adam(swap ? make_context() : nullptr, groups, placed(swap));
    const Gradients gradients(groups, 8, false);
    for (int step = 0; step < 8; ++step) {
      gradients.set(groups, step);
      if (step == 5) {
        adam.state(groups[0].params[0]).at("step").fill_(1);
        host.steps[0].fill_(1);
      }
      if (step % 3 == 1) {
        host.step(groups[0], std::nullopt, step == 4);
        adam.step({at::Tensor(), on_device(step == 4 ? 1 : 0)});
      } else {
        host.step(groups[0], std::nullopt, false);
        adam.step();
      }
    }
    expect_same(adam, groups[0], host);
  }
}

TEST_F(GradScalingTest, TheHostNeverWaitsForWhetherAStepIsSkipped) {
  const auto groups = plain_groups({{1000, 1000}});
  const Gradients gradients(groups, 3, false);
  const auto context = make_context();
  Adam adam(context, groups, placed(true));
  const GradScaling scaling = {on_device(2), on_device(0)};
  for (int step = 0; step < 3; ++step) {
    gradients.set(groups, step);
    adam.step(scaling);
    const c10::Stream compute = context->copies().compute_stream();
    EXPECT_LT(sim().host_time(0), sim().stream_time(0, compute.id()));
  }
  adam.drain();
}

// The first scaled step moves the counts to the device: an allocation of its own.
TEST_F(GradScalingTest, AnAllocationThatFailsCostsAtMostARepeatedStep) {
  int num_thrown = 0;
  for (int64_t k = 0; k < 8; ++k) {
    SCOPED_TRACE(k);
    const auto groups = plain_groups(kSizes);
    HostAdamW host(groups[0]);
    const Gradients gradients(groups, 4, false);
    Adam adam(make_context(), groups, placed(true));
    for (int step = 0; step < 4; ++step) {
      gradients.set(groups, step);
      const bool is_inf = step == 1;
      host.step(groups[0], std::nullopt, is_inf);
      const GradScaling scaling = {at::Tensor(), on_device(is_inf ? 1 : 0)};
      bool has_thrown = false;
      if (step == 1) {
        sim::Faults faults;
        faults.fail_device_allocation = k;
        set_faults(faults);
      }
      try {
        adam.step(step == 0 ? GradScaling() : scaling);
      } catch (const std::exception&) {
        has_thrown = true;
        ++num_thrown;
      }
      set_faults({});
      if (has_thrown) {
        adam.step(scaling);
      }
    }
    expect_same(adam, groups[0], host);
  }
  EXPECT_GT(num_thrown, 0);
}

// The scratch for casts is allocated when the counts have moved on already: they move back, once.
TEST_F(GradScalingTest, AStepRepeatedForWantOfScratchCountsOnce) {
  AdamOptions options = placed(true);
  options.state_dtype = at::kBFloat16;
  std::map<std::string, at::Tensor> right;
  int num_thrown = 0;
  for (int64_t k = -1; k < 8; ++k) {
    SCOPED_TRACE(k);
    const auto groups = plain_groups(kSizes);
    const Gradients gradients(groups, 3, false);
    Adam adam(make_context(), groups, options);
    for (int step = 0; step < 3; ++step) {
      gradients.set(groups, step);
      const GradScaling scaling = {at::Tensor(), on_device(0)};
      sim::Faults faults;
      faults.fail_device_allocation = step == 1 ? k : -1;
      set_faults(faults);
      bool has_thrown = false;
      try {
        adam.step(scaling);
      } catch (const std::exception&) {
        has_thrown = true;
        ++num_thrown;
      }
      set_faults({});
      if (has_thrown) {
        adam.step(scaling);
      }
    }
    EXPECT_EQ(adam.state(groups[0].params[0]).at("step").item<float>(), 3.0F);
    if (k < 0) {
      right = snapshot(adam, groups);
    } else {
      expect_equal(snapshot(adam, groups), right);
    }
  }
  EXPECT_GT(num_thrown, 0);
}

TEST_F(GradScalingTest, WhatIsNoScalarIsRefusedBeforeAnythingIsTouched) {
  const auto groups = plain_groups(kSizes);
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(), groups);
  gradients.set(groups, 0);
  EXPECT_THAT(message_of([&] { adam.step({at::Tensor(), at::full({2}, 0.0F)}); }),
              ::testing::HasSubstr("found_inf must be one float"));
  EXPECT_THAT(message_of([&] { adam.step({at::full({1}, 2.0, at::kDouble), at::Tensor()}); }),
              ::testing::HasSubstr("grad_scale must be one float"));
  adam.step({at::full({1}, 2.0F), at::full({1}, 0.0F)});  // from the host they are brought over
  EXPECT_EQ(adam.state(groups[0].params[0]).at("step").item<float>(), 1.0F);
}

TEST_F(GradScalingTest, ALearningRateOnTheDeviceCountsAsItIsThen) {
  for (const bool swap : {false, true}) {
    std::map<std::string, at::Tensor> results[2];
    for (const bool is_tensor : {false, true}) {
      auto groups = plain_groups(kSizes, {.weight_decay = 0.1});
      Adam adam(swap ? make_context() : nullptr, groups, placed(swap));
      const at::Tensor lr = on_device(0).reshape({});
      const Gradients gradients(groups, 4, false);
      for (int step = 0; step < 4; ++step) {
        gradients.set(groups, step);
        const float rate = 0.5F / static_cast<float>(1 << step);
        if (is_tensor) {
          lr.fill_(rate);
          adam.settings(0).lr_tensor = lr;
        } else {
          adam.settings(0).lr = rate;
        }
        adam.step();
      }
      results[is_tensor ? 1 : 0] = snapshot(adam, groups);
    }
    expect_equal(results[1], results[0]);
  }
}

TEST_F(GradScalingTest, ThePortableKernelRefusesWhatOnlyTheFusedOneCan) {
  const auto groups = plain_groups(kSizes);
  const Gradients gradients(groups, 1, false);
  AdamOptions options;
  options.kernel = AdamKernel::kPortable;
  Adam adam(make_context(), groups, options);
  gradients.set(groups, 0);
  const auto before = groups[0].params[0].detach().cpu();
  EXPECT_THAT(message_of([&] { adam.step({on_device(2), on_device(0)}); }),
              ::testing::HasSubstr("unscale the gradients"));
  adam.settings(0).lr_tensor = on_device(0.1F);
  EXPECT_THAT(message_of([&] { adam.step(); }),
              ::testing::HasSubstr("lr_tensor needs a fused kernel"));
  adam.settings(0).lr_tensor = at::full({2}, 0.1F);
  EXPECT_THAT(message_of([&] { adam.step(); }),
              ::testing::HasSubstr("lr_tensor must be one float"));
  EXPECT_TRUE(at::equal(groups[0].params[0].detach().cpu(), before));
}

}  // namespace
}  // namespace swapline::testing
