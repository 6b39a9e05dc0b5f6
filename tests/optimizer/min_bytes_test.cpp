// Small parameters whose states stay on the device.
#include "tests/optimizer/training.h"

#include <exception>
#include <map>
#include <string>

namespace swapline::testing {
namespace {

using MinBytesTest = OptimizerTest;

const std::vector<std::vector<int64_t>> kSizes = {{300, 200}, {64}, {1000}, {33}};

AdamOptions small_ones_stay() {
  AdamOptions options;
  options.swap_optimizer_min_bytes = 8 * 1000;
  return options;
}

TEST_F(MinBytesTest, SmallStatesStayOnTheDeviceAndTheBitsAreTheSame) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool keeps : {false, true}) {
    const auto groups = plain_groups(kSizes, {.weight_decay = 0.1});
    const Gradients gradients(groups, 20, /*with_gaps=*/true);
    Adam adam(make_context(), groups, keeps ? small_ones_stay() : AdamOptions());
    for (int step = 0; step < 20; ++step) {
      gradients.set(groups, step);
      adam.prefetch();
      adam.step();
    }
    adam.drain();
    EXPECT_EQ(adam.device_state_bytes(), keeps ? 8u * (64 + 33) : 0u);
    EXPECT_EQ(adam.state(groups[0].params[1]).at("exp_avg").is_cpu(), !keeps);
    EXPECT_TRUE(adam.state(groups[0].params[2]).at("exp_avg").is_cpu()) << "just large enough";
    EXPECT_EQ(adam.stats().state_bytes, 8u * (60000 + 64 + 1000 + 33));
    results[keeps ? 1 : 0] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

// All that a step needs is there before its first update, also when both kinds of states have work.
TEST_F(MinBytesTest, AnAllocationThatFailsCostsAtMostARepeatedStep) {
  AdamOptions options = small_ones_stay();
  options.kernel = AdamKernel::kPortable;  // scratch on both ways
  std::map<std::string, at::Tensor> right;
  int num_thrown = 0;
  for (int64_t k = -1; k < 12; ++k) {
    const auto groups = plain_groups(kSizes);
    const Gradients gradients(groups, 2, false);
    Adam adam(make_context(), groups, options);
    for (int step = 0; step < 2; ++step) {
      gradients.set(groups, step);
      sim::Faults faults;
      faults.fail_device_allocation = step == 0 ? k : -1;
      set_faults(faults);
      bool has_thrown = false;
      try {
        adam.step();
      } catch (const std::exception&) {
        has_thrown = true;
        ++num_thrown;
      }
      set_faults({});
      if (has_thrown) {
        adam.step();
      }
    }
    if (k < 0) {
      right = snapshot(adam, groups);
    } else {
      expect_equal(snapshot(adam, groups), right);
    }
  }
  EXPECT_GT(num_thrown, 3);
}

}  // namespace
}  // namespace swapline::testing
