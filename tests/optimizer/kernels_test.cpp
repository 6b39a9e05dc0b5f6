// The portable kernel has the bits of torch's foreach path, and is taken where there is no other.
#include "swapline/optimizer/adam_update.h"
#include "swapline/optimizer/fused_adam.h"
#include "tests/optimizer/reference.h"
#include "tests/optimizer/training.h"

#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>

namespace swapline::testing {
namespace {

using detail::AdamUpdate;
using detail::FusedAdamSupport;

constexpr int kNumSteps = 20;
const c10::Device kWithoutFused(c10::kMeta);

using KernelsTest = OptimizerTest;

AdamSettings variant(int bits) {
  AdamSettings settings;
  settings.lr = 0.01;
  settings.eps = 1e-6;
  settings.decoupled = (bits & 1) == 0;
  settings.weight_decay = (bits & 2) != 0 ? 0.1 : 0;
  settings.amsgrad = (bits & 4) != 0;
  settings.maximize = (bits & 8) != 0;
  return settings;
}

AdamOptions portable(StatePlacement placement, int64_t times = 4) {
  AdamOptions options;
  options.placement = placement;
  options.swap_optimizer_times = times;
  options.kernel = AdamKernel::kPortable;
  return options;
}

TEST_F(KernelsTest, ThePortableKernelHasTheBitsOfTorchsForeachPath) {
  for (const auto placement : {StatePlacement::kSwap, StatePlacement::kDevice}) {
    for (int bits = 0; bits < 16; ++bits) {
      SCOPED_TRACE("variant " + std::to_string(bits));
      use_machine({.late_copies = bits % 2 == 0});
      const auto groups = odd_groups(variant(bits));
      const Gradients gradients(groups, kNumSteps, /*with_gaps=*/true);
      const auto options = portable(placement, bits % 3 == 0 ? 16 : 3);
      Reference reference(groups, options);
      Adam adam(make_context(), groups, options);
      for (int step = 0; step < kNumSteps; ++step) {
        gradients.set(groups, step);
        adam.step();
        reference.step();
      }
      expect_equal(snapshot(adam, groups), reference.snapshot());
      EXPECT_EQ(sim().num_races(), 0) << first_race();
    }
  }
}

// On the host itself there is no simulated device between the kernel and torch's operators.
TEST_F(KernelsTest, ThePortableKernelRunsOnTheHostToo) {
  for (const int bits : {0, 3, 6, 11, 15}) {
    auto groups = plain_groups({{300, 70}, {33}, {}}, variant(bits));
    for (auto& param : groups[0].params) {
      param = param.detach().cpu().requires_grad_(true);
    }
    Reference reference(groups, portable(StatePlacement::kDevice));
    Adam adam(nullptr, groups, portable(StatePlacement::kDevice));
    for (int step = 0; step < kNumSteps; ++step) {
      for (const auto& param : groups[0].params) {
        param.mutable_grad() = make_param(param.sizes(), step).detach().cpu();
      }
      adam.step();
      reference.step();
    }
    expect_equal(snapshot(adam, groups), reference.snapshot());
  }
}

TEST_F(KernelsTest, SettingsMayComeToNeedMoreScratchBetweenSteps) {
  const auto groups = plain_groups({{300, 70}, {33}});
  const Gradients gradients(groups, 4, false);
  const auto options = portable(StatePlacement::kSwap);
  Reference reference(groups, options);
  Adam adam(make_context(), groups, options);
  for (int step = 0; step < 4; ++step) {
    gradients.set(groups, step);
    for (auto* settings : {&adam.settings(0), &reference.settings(0)}) {
      settings->decoupled = step < 2;
      settings->weight_decay = 0.1 * step;
      settings->maximize = step == 3;
    }
    adam.step();
    reference.step();
  }
  expect_equal(snapshot(adam, groups), reference.snapshot());
}

TEST_F(KernelsTest, TheFusedKernelIsAskedForByDispatchKey) {
  for (const bool decoupled : {true, false}) {
    for (const c10::Device each : {device(), c10::Device(c10::kCPU)}) {
      FusedAdamSupport support(each, decoupled);
      EXPECT_TRUE(support.runs() && support.takes_tensor_lr() && support.scales()) << each;
    }
    FusedAdamSupport none(kWithoutFused, decoupled);
    EXPECT_FALSE(none.runs() || none.takes_tensor_lr() || none.scales());
    AdamSettings settings;
    settings.decoupled = decoupled;
    EXPECT_TRUE(AdamUpdate(device(), AdamKernel::kAuto).is_fused(settings));
    EXPECT_FALSE(AdamUpdate(device(), AdamKernel::kPortable).is_fused(settings));
    EXPECT_FALSE(AdamUpdate(kWithoutFused, AdamKernel::kAuto).is_fused(settings));
  }
}

TEST_F(KernelsTest, AFusedKernelThatTheDeviceHasNotIsRefused) {
  AdamSettings settings;
  AdamUpdate(device(), AdamKernel::kFused).check(settings);
  AdamUpdate(kWithoutFused, AdamKernel::kAuto).check(settings);
  for (const bool decoupled : {true, false}) {
    settings.decoupled = decoupled;
    try {
      AdamUpdate(kWithoutFused, AdamKernel::kFused).check(settings);
      FAIL() << "nothing was thrown";
    } catch (const c10::Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(decoupled ? "has no _fused_adamw_" : "has no _fused_adam_"),
                std::string::npos);
      EXPECT_NE(message.find("kAuto or kPortable"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace swapline::testing
