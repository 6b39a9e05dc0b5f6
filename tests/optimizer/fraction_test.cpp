// A share of the states that stays on the device: the same bits, fewer copies, whole on the host
// whenever somebody looks.
#include "tests/optimizer/lost_device.h"
#include "tests/optimizer/training.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>

namespace swapline::testing {
namespace {

constexpr int kNumSteps = 20;

AdamOptions with_fraction(double fraction, int64_t times = 4) {
  AdamOptions options;
  options.swap_optimizer_fraction = fraction;
  options.swap_optimizer_times = times;
  return options;
}

class FractionTest : public OptimizerTest {
 protected:
  static std::map<std::string, at::Tensor> train(const AdamOptions& options, bool with_looks) {
    AdamSettings settings;
    settings.weight_decay = 0.1;
    settings.amsgrad = true;
    const auto groups = odd_groups(settings);
    const Gradients gradients(groups, kNumSteps, /*with_gaps=*/true);
    Adam adam(make_context(), groups, options);
    for (int step = 0; step < kNumSteps; ++step) {
      gradients.set(groups, step);
      if (step % 3 == 1) {
        adam.prefetch();
      }
      adam.step();
      if (with_looks && step % 7 == 3) {
        adam.state(groups[0].params[0]).at("exp_avg").mul_(0.5);
      }
    }
    return snapshot(adam, groups);
  }
};

TEST_F(FractionTest, TheBitsAreThoseOfSwappedAndOfResidentStates) {
  for (const bool has_masters : {false, true}) {
    for (const bool with_looks : {false, true}) {
      AdamOptions plain;
      plain.placement = StatePlacement::kDevice;
      plain.master_weights = has_masters;
      use_machine();
      const auto expected = train(plain, with_looks);
      for (const double fraction : {0.0, 0.3, 0.8, 1.0}) {
        SCOPED_TRACE(fraction);
        use_machine({.late_copies = true});
        AdamOptions options = with_fraction(fraction);
        options.master_weights = has_masters;
        expect_equal(train(options, with_looks), expected);
        EXPECT_EQ(sim().num_races(), 0) << first_race();
      }
    }
  }
}

TEST_F(FractionTest, WhatIsKeptIsLoadedOnceAndStoredByDrain) {
  const auto groups = plain_groups({{700, 300}, {5000}});
  const Gradients gradients(groups, 3, false);
  const auto context = make_context();
  Adam adam(context, groups, with_fraction(0.5));
  const auto stats = adam.stats();
  EXPECT_LE(stats.kept_bytes, stats.state_bytes / 2 + 4096) << "4096: padding of the rows";
  EXPECT_GE(stats.kept_bytes, stats.state_bytes / 2 - stats.slot_bytes);
  EXPECT_EQ(adam.device_state_bytes(), 0u);
  int64_t num_moving = 0;
  sim().reset_peak_memory(0);
  const size_t before = sim().memory_stats(0).allocated_bytes;
  for (int step = 0; step < 3; ++step) {
    const auto then = adam.stats();
    gradients.set(groups, step);
    adam.step();
    context->settle_all();
    EXPECT_EQ(adam.device_state_bytes(), stats.kept_bytes);
    const auto now = adam.stats();
    const auto num_out = now.num_copies_out - then.num_copies_out;
    const auto num_in = now.num_copies_in - then.num_copies_in;
    num_moving = num_out / 2;
    EXPECT_NEAR(static_cast<double>(num_moving), static_cast<double>(stats.num_chunks) / 2, 1);
    EXPECT_EQ(num_in, step == 0 ? 2 * stats.num_chunks : num_out);
  }
  EXPECT_LE(sim().memory_stats(0).peak_allocated_bytes - before,
            stats.arena_bytes + stats.kept_bytes + 512 * (1 + stats.num_chunks));
  const auto then = adam.stats();
  adam.drain();
  EXPECT_EQ(adam.stats().num_copies_out - then.num_copies_out, 2 * (stats.num_chunks - num_moving));
  EXPECT_EQ(adam.device_state_bytes(), 0u);
  EXPECT_EQ(sim().memory_stats(0).allocated_bytes, before);
}

TEST_F(FractionTest, TheStepIsShorterByTheShareThatStays) {
  double step_ms[2];
  for (const bool half : {false, true}) {
    use_machine({.preset = "trial"});
    const auto groups = plain_groups({{2000, 1000}, {1000, 1000}});
    const Gradients gradients(groups, 1, false);
    Adam adam(make_context(nullptr, /*timing=*/true), groups, with_fraction(half ? 0.5 : 1, 1));
    gradients.set(groups, 0);
    for (int step = 0; step < 3; ++step) {
      adam.step();
    }
    step_ms[half ? 1 : 0] = adam.take_step_times().at(2).step_ms;
    adam.drain();
  }
  EXPECT_LT(step_ms[1], 0.65 * step_ms[0]);
}

TEST_F(FractionTest, WithoutRoomEverythingIsSwapped) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool is_short : {false, true}) {
    const auto groups = plain_groups({{5000, 1000}});
    const Gradients gradients(groups, 1, false);
    AdamOptions options = with_fraction(0, 1);
    options.copy_latency_s = 1e-3;  // slots large enough to be segments of their own
    Adam adam(make_context(), groups, options);
    gradients.set(groups, 0);
    sim().empty_cache(0);
    const auto memory = sim().memory_stats(0);
    const size_t room = 2 * adam.stats().slot_bytes;
    sim().take_away(0, is_short ? memory.capacity_bytes - memory.reserved_bytes - room : 0);
    adam.step();
    EXPECT_EQ(adam.stats().num_copies_out > 0, is_short);
    sim().take_away(0, 0);
    adam.step();
    results[is_short ? 1 : 0] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

TEST_F(FractionTest, AStepThatFailsBeforeItsFirstUpdateLosesNothingOfWhatIsKept) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool fails : {false, true}) {
    const auto groups = plain_groups({{700, 300}, {5000}});
    const Gradients gradients(groups, 3, false);
    const auto order = std::make_shared<LostDevice>(Wait::kUpdateAfterLoad, -1);
    Adam adam(make_context(order), groups, with_fraction(0.5));
    int num_thrown = 0;
    for (int step = 0; step < 3; ++step) {
      gradients.set(groups, step);
      if (fails && step == 1) {
        order->lose_next();
      }
      try {
        adam.step();
      } catch (const std::exception&) {
        ++num_thrown;
        EXPECT_EQ(adam.device_state_bytes(), 0u);
        adam.step();
      }
    }
    EXPECT_EQ(num_thrown, fails ? 1 : 0);
    results[fails ? 1 : 0] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

class FractionWaitsTest : public FractionTest, public ::testing::WithParamInterface<Wait> {};

TEST_P(FractionWaitsTest, KeptChunksNeedTheWaitToo) {
  const auto order = std::make_shared<DropWait>(GetParam());
  {
    const auto groups = plain_groups({{300, 300}});
    const Gradients gradients(groups, 1, false);
    Adam adam(make_context(order), groups, with_fraction(0));
    gradients.set(groups, 0);
    adam.step();
    adam.drain();
  }
  EXPECT_GT(order->count(GetParam()), 0);
  expect_races();
}

INSTANTIATE_TEST_SUITE_P(Optimizer,
                         FractionWaitsTest,
                         ::testing::Values(Wait::kUpdateAfterLoad, Wait::kStoreAfterUpdate),
                         [](const auto& info) { return std::string(wait_name(info.param)); });

TEST_F(FractionTest, AFractionOutsideZeroToOneIsRefused) {
  for (const double fraction : {-0.1, 1.5}) {
    try {
      Adam adam(make_context(), plain_groups({{8}}), with_fraction(fraction));
      FAIL() << "nothing was thrown";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("swap_optimizer_fraction must be in [0, 1], got"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace swapline::testing
