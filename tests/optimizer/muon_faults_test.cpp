// What goes wrong with Muon: every allocation, pin and copy in turn, missing waits, bad input.
#include "tests/optimizer/lost_device.h"
#include "tests/optimizer/muon_training.h"
#include "tests/support/errors.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

namespace swapline::testing {
namespace {

using sim::Faults;

#define EXPECT_MESSAGE(call, part) \
  EXPECT_THAT(message_of([&] { call; }), ::testing::HasSubstr(part))

class MuonFaultsTest : public OptimizerTest {
 protected:
  struct Run {
    explicit Run(const std::shared_ptr<SwapContext>& context, double fraction = 1) {
      AdamOptions options;
      options.swap_optimizer_times = 4;
      options.swap_optimizer_fraction = fraction;
      matrices.params = {make_param({100, 90}, 1),
                         make_param({40, 60}, 2),
                         make_param({4, 16, 16}, 3),
                         make_param({90, 100}, 6)};
      others.params = {make_param({1000}, 4), make_param({33}, 5)};
      params = params_of(matrices, others);
      muon = std::make_unique<Muon>(context, std::vector{matrices}, std::vector{others}, options);
      gradients = std::make_unique<Gradients>(as_groups(params), 3, false);
    }
    void set_gradients(int step) const { gradients->set(as_groups(params), step); }

    MuonGroup matrices;
    AdamGroup others;
    std::vector<at::Tensor> params;
    std::unique_ptr<Muon> muon;
    std::unique_ptr<Gradients> gradients;
  };

  // Fails each occasion of a kind in the second step, one at a time. Whatever happens, three steps
  // that came to their end have the right bits. Returns how often the step had to be repeated.
  int fail_each(int64_t Faults::* kind, int64_t (*count)(), double fraction) {
    std::map<std::string, at::Tensor> right;
    int64_t num_occasions = 1;
    int num_thrown = 0;
    for (int64_t k = -1; k < num_occasions; ++k) {
      SCOPED_TRACE("fault " + std::to_string(k));
      const Run run(make_context(), fraction);
      run.set_gradients(0);
      run.muon->step();
      run.muon->drain();
      run.set_gradients(1);
      const int64_t before = count();
      Faults faults;
      faults.*kind = k;  // -1: none, to count the occasions
      set_faults(faults);
      bool has_thrown = false;
      try {
        run.muon->prefetch();
        run.muon->step();
      } catch (const std::exception&) {
        has_thrown = true;
        EXPECT_EQ(run.muon->device_state_bytes(), 0u);
      }
      set_faults({});
      if (k < 0) {
        num_occasions = count() - before;
      }
      if (has_thrown) {
        ++num_thrown;
        run.muon->step();  // nothing was changed: once more
      }
      run.set_gradients(2);
      run.muon->step();
      const auto result = snapshot(*run.muon, run.params);
      if (k < 0) {
        right = result;
      }
      expect_equal(result, right);
    }
    EXPECT_GT(num_occasions, 0);
    return num_thrown;
  }

  static int64_t num_copies() {
    const auto counters = sim().counters(0);
    return counters.num_copies_in + counters.num_copies_out;
  }
  static int64_t num_device_allocations() { return sim().memory_stats(0).num_allocations; }

  // Steps back to back.
  void train_without(std::optional<Wait> wait) {
    auto order = std::make_shared<DropWait>(wait);
    {
      const Run run(make_context(order));
      EXPECT_GT(run.muon->stats().num_chunks, run.muon->stats().num_slots);
      for (int step = 0; step < 3; ++step) {
        run.set_gradients(step);
        run.muon->step();
      }
    }
    if (wait) {
      EXPECT_GT(order->count(*wait), 0);
      expect_races();
    }
  }
};

TEST_F(MuonFaultsTest, AFailingAllocationOrCopyCostsAtMostARepeatedStep) {
  for (const double fraction : {1.0, 0.5}) {
    SCOPED_TRACE(fraction);
    EXPECT_LE(fail_each(&Faults::fail_device_allocation, num_device_allocations, fraction), 2)
        << "only the scratch and the step's number cannot be done without";
    EXPECT_EQ(fail_each(&Faults::fail_copy, num_copies, fraction), 0);
  }
}

TEST_F(MuonFaultsTest, NothingIsAllocatedOnceTheFirstUpdateIsEnqueued) {
  const Run run(make_context());
  run.set_gradients(0);
  run.muon->step();
  run.muon->drain();
  run.set_gradients(1);
  const int64_t before = num_device_allocations();
  run.muon->step();
  EXPECT_EQ(num_device_allocations() - before, run.muon->stats().num_slots + 2)
      << "slots, scratch, the step's number";
}

TEST_F(MuonFaultsTest, WithAllWaitsThereAreNoRaces) {
  train_without(std::nullopt);
}

class MuonWaitsTest : public MuonFaultsTest, public ::testing::WithParamInterface<Wait> {};

TEST_P(MuonWaitsTest, WithoutTheWaitThereIsARace) {
  train_without(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Optimizer,
                         MuonWaitsTest,
                         ::testing::Values(Wait::kLoadAfterSlotFree,
                                           Wait::kUpdateAfterLoad,
                                           Wait::kStoreAfterUpdate),
                         [](const auto& info) { return std::string(wait_name(info.param)); });

TEST_F(MuonFaultsTest, AFailureInTheMiddleIsSaid) {
  const auto context = make_context(std::make_shared<LostDevice>(Wait::kStoreAfterUpdate, 1));
  const Run run(context);
  run.set_gradients(0);
  EXPECT_MESSAGE(run.muon->step(), "step() failed after ");
  EXPECT_MESSAGE(run.muon->step(), " of 6 parameters had been updated");
  EXPECT_EQ(run.muon->device_state_bytes(), 0u);
  EXPECT_EQ(context->pending_release_bytes(), 0u);
}

TEST_F(MuonFaultsTest, WhatIsNoMatrixIsRefusedByName) {
  const auto context = make_context();
  const auto build = [&](at::IntArrayRef sizes) {
    const Muon muon(context, {{{make_param({4, 4}, 1), make_param(sizes, 2)}, {}}});
  };
  EXPECT_MESSAGE(build({8}), "parameter 1 of group 0 has sizes [8], and Muon updates matrices");
  EXPECT_MESSAGE(build({}), "has sizes []");
  EXPECT_MESSAGE(build({2, 3, 4, 5}), "has sizes [2, 3, 4, 5]");
  EXPECT_MESSAGE(Muon(context, {}), "got no parameters");
  build({8, 2});
}

TEST_F(MuonFaultsTest, SettingsThatAreNotAllowedAreNamed) {
  const auto context = make_context();
  const auto with = [&](const std::function<void(MuonSettings&)>& change) {
    MuonGroup group = {{make_param({4, 4}, 1)}, {}};
    change(group.settings);
    const Muon muon(context, {group});
  };
  EXPECT_MESSAGE(with([](auto& s) { s.lr = -1; }), "lr must be at least 0, got -1");
  EXPECT_MESSAGE(with([](auto& s) { s.weight_decay = -1; }), "weight_decay must be at least 0");
  EXPECT_MESSAGE(with([](auto& s) { s.momentum = 1; }), "momentum must be in [0, 1), got 1");
  EXPECT_MESSAGE(with([](auto& s) { s.eps = -1; }), "eps must be at least 0");
  EXPECT_MESSAGE(with([](auto& s) { s.ns_steps = 0; }), "ns_steps must be in [1, 100), got 0");
  EXPECT_MESSAGE(with([](auto& s) { s.ns_steps = 100; }), "ns_steps must be in [1, 100), got 100");
  EXPECT_MESSAGE(with([](auto& s) { s.hybrid_ns = true; }), "ns_steps must be above 8, got 5");
}

TEST_F(MuonFaultsTest, ScalingIsRefusedBeforeAnythingIsTouched) {
  const Run run(make_context());
  run.set_gradients(0);
  const at::Tensor before = run.params[0].detach().cpu();
  GradScaling scaling;
  scaling.found_inf = at::ones({}, run.params[0].options().requires_grad(false));
  EXPECT_MESSAGE(run.muon->step(scaling), "Muon has no grad_scale and found_inf");
  EXPECT_TRUE(at::equal(run.params[0].detach().cpu(), before));
}

TEST_F(MuonFaultsTest, SettingsOfTheOtherKindOfGroupAreRefused) {
  const Run run(make_context());
  EXPECT_MESSAGE(run.muon->settings(1), "group 1 is not Muon's");
  EXPECT_MESSAGE(run.muon->adam_settings(0), "group 0 is Muon's");
  run.muon->set_lr(1, 0.25);
  EXPECT_EQ(run.muon->adam_settings(1).lr, 0.25);
}

}  // namespace
}  // namespace swapline::testing
