// The swapped optimizer's bits are those of the plain one, and the plain one's those of torch.
#include "tests/optimizer/training.h"

#include <string>
#include <vector>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

namespace swapline::testing {
namespace {

constexpr int kNumSteps = 20;

struct Variant {
  std::string name;
  AdamSettings settings;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const bool decoupled : {true, false}) {
    for (int bits = 0; bits < 8; ++bits) {
      Variant variant;
      variant.settings.decoupled = decoupled;
      variant.settings.lr = 0.01;
      variant.settings.weight_decay = (bits & 1) != 0 ? 0.1 : 0;
      variant.settings.amsgrad = (bits & 2) != 0;
      variant.settings.maximize = (bits & 4) != 0;
      variant.name = std::string(decoupled ? "AdamW" : "Adam") + " variant " + std::to_string(bits);
      all.push_back(variant);
    }
  }
  return all;
}

// What schedulers do between steps.
void change_settings(Adam& adam, int step) {
  for (size_t g = 0; g < adam.num_groups(); ++g) {
    AdamSettings& settings = adam.settings(g);
    settings.lr *= step % 3 == 0 ? 1.5 : 0.8;
    if (step == 10) {
      settings.beta1 = 0.85;
      settings.beta2 = 0.99;
    }
  }
}

std::map<std::string, at::Tensor> train(const AdamSettings& settings,
                                        const AdamOptions& options,
                                        bool prefetch) {
  const auto groups = odd_groups(settings);
  const Gradients gradients(groups, kNumSteps, /*with_gaps=*/true);
  const auto context = options.placement == StatePlacement::kSwap
                           ? std::make_shared<SwapContext>(sim::device())
                           : nullptr;
  Adam adam(context, groups, options);
  for (int step = 0; step < kNumSteps; ++step) {
    gradients.set(groups, step);
    if (prefetch && step % 2 == 1) {
      adam.prefetch();
    }
    change_settings(adam, step);
    adam.step();
  }
  return snapshot(adam, groups);
}

struct Machine {
  bool late_copies;
  int64_t times;
  int every;  // of the variants
  double copy_jitter = 0;
};

class BitsTest : public OptimizerTest, public ::testing::WithParamInterface<Machine> {};

TEST_P(BitsTest, SwappedStatesGiveTheBitsOfResidentOnes) {
  const Machine& machine = GetParam();
  const auto all = variants();
  for (size_t i = 0; i < all.size(); i += static_cast<size_t>(machine.every)) {
    SCOPED_TRACE(all[i].name);
    AdamOptions plain;
    plain.placement = StatePlacement::kDevice;
    use_machine();
    const auto expected = train(all[i].settings, plain, false);
    AdamOptions swapped;
    swapped.swap_optimizer_times = machine.times;
    use_machine({.late_copies = machine.late_copies,
                 .copy_slowdown = 1 + machine.copy_jitter,
                 .copy_jitter = machine.copy_jitter,
                 .seed = i});
    expect_equal(train(all[i].settings, swapped, /*prefetch=*/i % 2 == 0), expected);
    EXPECT_EQ(sim().num_races(), 0) << first_race();
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizer,
                         BitsTest,
                         ::testing::Values(Machine{true, 1, 3},
                                           Machine{true, 4, 1},
                                           Machine{true, 16, 5},
                                           Machine{true, 64, 7},
                                           Machine{false, 1, 5},
                                           Machine{false, 4, 5},
                                           Machine{false, 16, 5},
                                           Machine{false, 64, 7},
                                           Machine{true, 8, 3, 5.0}),
                         [](const auto& info) {
                           return std::string(info.param.late_copies ? "Late" : "Eager") + "Times" +
                                  std::to_string(info.param.times);
                         });

using StockBitsTest = OptimizerTest;

TEST_F(StockBitsTest, TheNumberOfCpuThreadsChangesNothing) {
  std::map<std::string, at::Tensor> results[2];
  for (const int num_threads : {1, 2}) {
    at::set_num_threads(num_threads);
    const auto groups = plain_groups({{700, 130}, {33}});
    const Gradients gradients(groups, 3, false);
    AdamOptions options;
    options.swap_optimizer_times = num_threads == 1 ? 1 : 7;
    Adam adam(make_context(), groups, options);
    for (int step = 0; step < 3; ++step) {
      gradients.set(groups, step);
      adam.step();
    }
    results[num_threads - 1] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

TEST_F(StockBitsTest, ThePlainOptimizerRunsOnTheCpuToo) {
  const auto on_device = plain_groups({{300, 13}, {}});
  auto on_cpu = on_device;
  for (auto& param : on_cpu[0].params) {
    param = param.detach().cpu().requires_grad_(true);
  }
  AdamOptions options;
  options.placement = StatePlacement::kDevice;
  Adam adam(nullptr, on_device, options);
  Adam cpu_adam(nullptr, on_cpu, options);
  const Gradients gradients(on_device, 3, false);
  for (int step = 0; step < 3; ++step) {
    gradients.set(on_device, step);
    for (size_t i = 0; i < on_cpu[0].params.size(); ++i) {
      on_cpu[0].params[i].mutable_grad() = on_device[0].params[i].grad().cpu();
    }
    adam.step();
    cpu_adam.step();
  }
  expect_equal(snapshot(cpu_adam, on_cpu), snapshot(adam, on_device));
  EXPECT_EQ(cpu_adam.device_state_bytes(), 2u * 4 * (3900 + 1));
}

// Scenario 53: the table of kinds, decay and eps against torch's kernel on whole CPU tensors.
TEST_F(StockBitsTest, PlainAndSwappedStepsEqualTorchsKernelOnTheHost) {
  for (const bool swap : {false, true}) {
    for (auto variant : variants()) {
      SCOPED_TRACE(variant.name + (swap ? ", swapped" : ", plain"));
      variant.settings.eps = 1e-6;
      const auto groups = plain_groups({{300, 70}, {33}, {}}, variant.settings);
      const auto& settings = variant.settings;
      std::vector<at::Tensor> params;
      for (const auto& param : groups[0].params) {
        params.push_back(param.detach().cpu().clone());
      }
      std::vector<std::vector<at::Tensor>> states(3);
      for (auto& kind : states) {
        for (const auto& param : params) {
          kind.push_back(at::zeros_like(param));
        }
      }
      AdamOptions options;
      options.placement = swap ? StatePlacement::kSwap : StatePlacement::kDevice;
      Adam adam(swap ? make_context() : nullptr, groups, options);
      const Gradients gradients(groups, kNumSteps, false);
      for (int step = 0; step < kNumSteps; ++step) {
        gradients.set(groups, step);
        adam.step();
        std::vector<at::Tensor> grads;
        for (const auto& param : groups[0].params) {
          grads.push_back(param.grad().cpu());
        }
        const std::vector<at::Tensor> steps(params.size(), at::full({}, step + 1.0F));
        const auto maxima = settings.amsgrad ? states[2] : std::vector<at::Tensor>();
        const auto call = [&](auto kernel) {
          kernel(params,
                 grads,
                 states[0],
                 states[1],
                 maxima,
                 steps,
                 settings.lr,
                 settings.beta1,
                 settings.beta2,
                 settings.weight_decay,
                 settings.eps,
                 settings.amsgrad,
                 settings.maximize,
                 std::optional<at::Tensor>(),
                 std::optional<at::Tensor>());
        };
        settings.decoupled ? call([](const auto&... args) { at::_fused_adamw_(args...); })
                           : call([](const auto&... args) { at::_fused_adam_(args...); });
      }
      for (size_t i = 0; i < params.size(); ++i) {
        const auto& param = groups[0].params[i];
        EXPECT_TRUE(at::equal(param.detach().cpu(), params[i]));
        const auto state = adam.state(param);
        EXPECT_TRUE(at::equal(state.at("exp_avg").cpu(), states[0][i]));
        EXPECT_TRUE(at::equal(state.at("exp_avg_sq").cpu(), states[1][i]));
        EXPECT_EQ(state.count("max_exp_avg_sq"), settings.amsgrad ? 1u : 0u);
        if (settings.amsgrad) {
          EXPECT_TRUE(at::equal(state.at("max_exp_avg_sq").cpu(), states[2][i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace swapline::testing
