// What goes wrong: every allocation, pin and copy in turn, failures in the middle, bad input.
#include "tests/optimizer/lost_device.h"
#include "tests/optimizer/training.h"

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

namespace swapline::testing {
namespace {

using sim::Faults;

const std::vector<std::vector<int64_t>> kSizes = {{100, 90}, {1000}, {33}};

AdamOptions few_chunks() {
  AdamOptions options;
  options.swap_optimizer_times = 4;
  return options;
}

template <typename F>
std::string message_of(const F& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

#define EXPECT_MESSAGE(call, part) \
  EXPECT_PRED_FORMAT2(::testing::IsSubstring, part, message_of([&] { call; }))

class FaultsTest : public OptimizerTest {
 protected:
  // The CPU copies after `num_steps` steps without a fault.
  std::map<std::string, at::Tensor> expected(int num_steps) {
    const auto groups = plain_groups(kSizes, {}, dtype_);
    const Gradients gradients(groups, num_steps, false);
    Adam adam(make_context(), groups, options_);
    for (int step = 0; step < num_steps; ++step) {
      gradients.set(groups, step);
      adam.step();
    }
    return snapshot(adam, groups);
  }

  // Fails each occasion of a kind in the second step, one at a time. Whatever happens, three steps
  // that came to their end have the right bits.
  void fail_each(int64_t Faults::* kind, int64_t (*count)(), bool prefetch) {
    const auto right = expected(3);
    int64_t num_occasions = 1;
    for (int64_t k = -1; k < num_occasions; ++k) {
      SCOPED_TRACE("fault " + std::to_string(k));
      const auto groups = plain_groups(kSizes, {}, dtype_);
      const Gradients gradients(groups, 3, false);
      Adam adam(make_context(), groups, options_);
      gradients.set(groups, 0);
      adam.step();
      adam.drain();
      gradients.set(groups, 1);
      const size_t held = sim().memory_stats(0).allocated_bytes;
      const int64_t before = count();
      Faults faults;
      faults.*kind = k;  // -1: none, to count the occasions
      set_faults(faults);
      bool has_thrown = false;
      try {
        if (prefetch) {
          adam.prefetch();
        }
        adam.step();
      } catch (const std::exception&) {
        has_thrown = true;
        EXPECT_EQ(sim().memory_stats(0).allocated_bytes, held);
        EXPECT_EQ(adam.device_state_bytes(), 0u);
      }
      set_faults({});
      if (k < 0) {
        num_occasions = count() - before;
      }
      if (has_thrown) {
        ++num_thrown_;
        adam.step();  // nothing was changed: once more
      }
      gradients.set(groups, 2);
      adam.step();
      expect_equal(snapshot(adam, groups), right);
    }
  }

  static int64_t num_copies() {
    const auto counters = sim().counters(0);
    return counters.num_copies_in + counters.num_copies_out;
  }
  static int64_t num_device_allocations() { return sim().memory_stats(0).num_allocations; }
  static int64_t num_pins() { return sim().pinned_stats().num_allocations; }

  // States of another dtype than the parameters, and a kernel that needs scratch: all that a step
  // can hold.
  void use_all_options() {
    dtype_ = at::kBFloat16;
    options_.state_dtype = at::kBFloat16;
    options_.master_weights = true;
    options_.kernel = AdamKernel::kPortable;
  }

  AdamOptions options_ = few_chunks();
  at::ScalarType dtype_ = at::kFloat;
  int64_t num_thrown_ = 0;
};

TEST_F(FaultsTest, AFailingDeviceAllocationCostsAtMostARepeatedStep) {
  fail_each(&Faults::fail_device_allocation, num_device_allocations, false);
  EXPECT_LE(num_thrown_, 1) << "only that of the step's number cannot be done without";
}

TEST_F(FaultsTest, AFailingDeviceAllocationInPrefetchCostsAtMostARepeatedStep) {
  fail_each(&Faults::fail_device_allocation, num_device_allocations, true);
  EXPECT_LE(num_thrown_, 1);
}

TEST_F(FaultsTest, AFailingCopyIsRepeated) {
  fail_each(&Faults::fail_copy, num_copies, false);
  EXPECT_EQ(num_thrown_, 0);
}

TEST_F(FaultsTest, AFailingCopyOfPrefetchIsRepeated) {
  fail_each(&Faults::fail_copy, num_copies, true);
  EXPECT_EQ(num_thrown_, 0);
}

// A launch that fails before the first update is repeated; one that fails later is said at once and
// at every later step. Nothing is left on the device either way.
TEST_F(FaultsTest, AFailingLaunchIsRepeatedOrSaid) {
  for (const bool all_options : {false, true}) {
    if (all_options) {
      use_all_options();
    }
    const auto right = expected(3);
    int num_repeated = 0;
    int num_said = 0;
    int64_t num_launches = 1;
    for (int64_t k = -1; k < num_launches; ++k) {
      SCOPED_TRACE(k);
      const auto groups = plain_groups(kSizes, {}, dtype_);
      const Gradients gradients(groups, 3, false);
      Adam adam(make_context(), groups, options_);
      gradients.set(groups, 0);
      adam.step();
      adam.drain();
      gradients.set(groups, 1);
      const size_t held = sim().memory_stats(0).allocated_bytes;
      const int64_t before = sim().counters(0).num_ops;
      Faults faults;
      faults.fail_launch = k;
      set_faults(faults);
      const std::string message = message_of([&] { adam.step(); });
      set_faults({});
      if (k < 0) {
        num_launches = sim().counters(0).num_ops - before;
        continue;
      }
      EXPECT_NE(message.find("injected fault"), std::string::npos) << message;
      EXPECT_EQ(sim().memory_stats(0).allocated_bytes, held);
      EXPECT_EQ(adam.device_state_bytes(), 0u);
      if (message.find("step() failed after ") != std::string::npos) {
        ++num_said;
        EXPECT_MESSAGE(adam.step(), "step() failed after ");
        EXPECT_FALSE(adam.state(groups[0].params[0]).empty()) << "what is left can be read";
        continue;
      }
      ++num_repeated;
      adam.step();
      gradients.set(groups, 2);
      adam.step();
      expect_equal(snapshot(adam, groups), right);
    }
    EXPECT_GT(num_said, 0);
    EXPECT_EQ(num_repeated, all_options ? 0 : 1) << "the number of the step";
  }
}

TEST_F(FaultsTest, AStepPinsNothing) {
  fail_each(&Faults::fail_pinned_allocation, num_pins, true);
  EXPECT_EQ(num_thrown_, 0);
}

TEST_F(FaultsTest, WithCastsAndMastersAFailingAllocationCostsAtMostARepeatedStep) {
  use_all_options();
  for (const bool prefetch : {false, true}) {
    num_thrown_ = 0;
    fail_each(&Faults::fail_device_allocation, num_device_allocations, prefetch);
    EXPECT_EQ(num_thrown_, 1) << "only the scratch cannot be done without";
  }
}

TEST_F(FaultsTest, WithCastsAndMastersAFailingCopyIsRepeated) {
  use_all_options();
  fail_each(&Faults::fail_copy, num_copies, false);
  fail_each(&Faults::fail_copy, num_copies, true);
  EXPECT_EQ(num_thrown_, 0);
}

TEST_F(FaultsTest, WithCastsAndMastersAStepPinsNothing) {
  use_all_options();
  fail_each(&Faults::fail_pinned_allocation, num_pins, true);
  EXPECT_EQ(num_thrown_, 0);
}

TEST_F(FaultsTest, WithAShareKeptOnTheDeviceFaultsCostAtMostARepeatedStep) {
  options_.swap_optimizer_fraction = 0.5;
  fail_each(&Faults::fail_device_allocation, num_device_allocations, true);
  EXPECT_LE(num_thrown_, 1) << "what cannot be kept is swapped";
  fail_each(&Faults::fail_copy, num_copies, true);
  EXPECT_LE(num_thrown_, 1) << "no copy costs a step";
}

TEST_F(FaultsTest, ConstructionThatFailsLeavesNothing) {
  const auto groups = plain_groups(kSizes);
  const size_t held = sim().memory_stats(0).allocated_bytes;
  for (int kind = 0; kind < 3; ++kind) {
    SwapContextOptions options;
    options.host.slab_bytes = 512;  // what is refused is not asked for by halves
    const auto context = std::make_shared<SwapContext>(device(), options);
    Faults faults;
    (kind == 0   ? faults.fail_pinned_allocation
     : kind == 1 ? faults.fail_device_allocation
                 : faults.fail_copy) = 0;
    set_faults(faults);
    EXPECT_ANY_THROW(Adam(context, groups)) << kind;
    set_faults({});
    EXPECT_EQ(sim().memory_stats(0).allocated_bytes, held);
    EXPECT_EQ(context->host().stats().requested_bytes, 0u);
    Adam adam(context, groups);
  }
}

TEST_F(FaultsTest, ConstructionWithMastersThatFailsLeavesNothing) {
  use_all_options();
  const auto groups = plain_groups({{700, 300}, {5000}}, {}, dtype_);
  const size_t held = sim().memory_stats(0).allocated_bytes;
  for (int64_t Faults::* const kind : {&Faults::fail_pinned_allocation, &Faults::fail_copy}) {
    int64_t num_failed = 0;
    for (bool has_thrown = true; has_thrown; ++num_failed) {
      SwapContextOptions options;
      options.host.slab_bytes = size_t{1} << 12;  // a slab for each block
      const auto context = std::make_shared<SwapContext>(device(), options);
      Faults faults;
      faults.*kind = num_failed;
      set_faults(faults);
      has_thrown = false;
      try {
        Adam adam(context, groups, options_);
      } catch (const std::exception&) {
        has_thrown = true;
      }
      set_faults({});
      EXPECT_EQ(sim().memory_stats(0).allocated_bytes, held);
      EXPECT_EQ(context->host().stats().requested_bytes, 0u);
    }
    EXPECT_GE(num_failed, 3) << "blocks with and without masters, one after another";
  }
}

TEST_F(FaultsTest, ALateUnfrozenParameterThatCannotBePinnedFailsBeforeAnythingIsTouched) {
  auto groups = plain_groups(kSizes);
  groups[0].params[1].requires_grad_(false);
  SwapContextOptions options;
  options.host.slab_bytes = 1 << 16;
  const auto context = std::make_shared<SwapContext>(sim::device(), options);
  Adam adam(context, groups);
  const Gradients gradients(groups, 1, false);
  gradients.set(groups, 0);
  const auto before = groups[0].params[0].detach().cpu();
  Faults faults;
  faults.fail_pinned_allocation = 0;
  set_faults(faults);
  bool has_thrown = false;
  try {
    adam.step();
  } catch (const HostMemoryError&) {
    has_thrown = true;
    EXPECT_TRUE(at::equal(groups[0].params[0].detach().cpu(), before));
  }
  set_faults({});
  if (has_thrown) {
    adam.step();
  }
  EXPECT_EQ(adam.state(groups[0].params[1]).count("exp_avg"), 1u);
}

TEST_F(FaultsTest, AFailureBeforeTheFirstUpdateCanBeRepeated) {
  const auto groups = plain_groups(kSizes);
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(std::make_shared<LostDevice>(Wait::kUpdateAfterLoad, 0)), groups);
  gradients.set(groups, 0);
  EXPECT_MESSAGE(adam.step(), "the device is lost");
  EXPECT_EQ(adam.device_state_bytes(), 0u);
  EXPECT_TRUE(adam.state(groups[0].params[0]).empty());
  adam.step();
  EXPECT_EQ(adam.state(groups[0].params[0]).at("step").item<float>(), 1.0F);
}

TEST_F(FaultsTest, AFailureInTheMiddleIsSaidNowAndAtEveryLaterStep) {
  for (const Wait wait :
       {Wait::kUpdateAfterLoad, Wait::kStoreAfterUpdate, Wait::kLoadAfterSlotFree}) {
    const auto groups = plain_groups(kSizes);
    const Gradients gradients(groups, 1, false);
    const auto context = make_context(std::make_shared<LostDevice>(wait, 3));
    Adam adam(context, groups);
    const size_t held = sim().memory_stats(0).allocated_bytes;
    gradients.set(groups, 0);
    EXPECT_MESSAGE(adam.step(), "step() failed after ");
    EXPECT_MESSAGE(adam.step(), " parameters had been updated");
    EXPECT_MESSAGE(adam.step(), "in part: parameter 0 of group 0");
    EXPECT_MESSAGE(adam.prefetch(), "the device is lost");
    EXPECT_EQ(adam.device_state_bytes(), 0u);
    EXPECT_EQ(context->pending_release_bytes(), 0u);
    EXPECT_LE(sim().memory_stats(0).allocated_bytes, held);
  }
}

// Scenarios 52 and 55, and the reference's half-applied step.
TEST_F(FaultsTest, GradientsThatCannotBeUsedAreRefusedBeforeAnythingIsTouched) {
  const auto groups = plain_groups(kSizes);
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(), groups);
  const auto& last = groups[0].params[2];
  const auto before = groups[0].params[0].detach().cpu();
  const auto refuse = [&](const at::Tensor& grad, const std::string& why) {
    gradients.set(groups, 0);
    last.mutable_grad() = grad;
    EXPECT_MESSAGE(adam.step(), why);
    EXPECT_TRUE(at::equal(groups[0].params[0].detach().cpu(), before));
    EXPECT_EQ(adam.device_state_bytes(), 0u);
  };
  refuse(at::zeros({33}, at::TensorOptions().layout(at::kSparse)),
         "the gradient of parameter 2 of group 0 is sparse");
  refuse(at::zeros({33}), "the gradient of parameter 2 of group 0 is on cpu");
  refuse(at::zeros({33}, last.options().requires_grad(false).dtype(at::kDouble)), "is Double");
  refuse(at::zeros({34}, last.options().requires_grad(false)), "has sizes [34]");
  gradients.set(groups, 0);
  adam.step();
}

TEST_F(FaultsTest, ParametersThatCannotBeOptimizedAreRefused) {
  const auto context = make_context();
  const auto good = make_param({8}, 1);
  const auto build = [&](std::vector<at::Tensor> params) {
    Adam adam(context, {{std::move(params), {}}});
  };
  EXPECT_MESSAGE(build({}), "got no parameters");
  EXPECT_MESSAGE(build({good, at::Tensor()}), "parameter 1 of group 0 is undefined");
  EXPECT_MESSAGE(build({good.mul(2)}), "can't optimize a non-leaf Tensor");
  EXPECT_MESSAGE(build({at::zeros({3})}), "is on cpu");
  EXPECT_MESSAGE(build({at::zeros({3}, good.options().requires_grad(false).dtype(at::kLong))}),
                 "real floating-point type");
  EXPECT_MESSAGE(build({good.detach().expand({4, 8})}), "gaps or overlaps");
  EXPECT_MESSAGE(build({make_param({8, 8}, 1).detach().select(1, 0)}), "gaps or overlaps");
  EXPECT_MESSAGE(Adam(context, {{{good}, {}}, {{good}, {}}}),
                 "parameter 0 of group 1 is also parameter 0 of group 0");
  EXPECT_MESSAGE(Adam(nullptr, {{{good}, {}}}), "needs a SwapContext");
}

// Scenario 70.
TEST_F(FaultsTest, OptionsThatAreNotAllowedAreNamed) {
  const auto context = make_context();
  const auto good = make_param({8}, 1);
  const auto with = [&](const std::function<void(AdamOptions&, AdamSettings&)>& change) {
    AdamOptions options;
    AdamSettings settings;
    change(options, settings);
    Adam adam(context, {{{good}, settings}}, options);
  };
  EXPECT_MESSAGE(with([](auto& o, auto&) { o.swap_optimizer_times = 0; }),
                 "swap_optimizer_times must be at least 1, got 0");
  EXPECT_MESSAGE(with([](auto& o, auto&) { o.swap_optimizer_times = -1; }),
                 "swap_optimizer_times must be at least 1, got -1");
  EXPECT_MESSAGE(with([](auto& o, auto&) { o.num_slots = 2; }), "num_slots must be at least 3");
  EXPECT_MESSAGE(with([](auto& o, auto&) { o.link_bytes_per_s = 0; }), "link_bytes_per_s");
  EXPECT_MESSAGE(with([](auto& o, auto&) { o.copy_latency_s = -1; }), "copy_latency_s");
  EXPECT_MESSAGE(with([](auto& o, auto&) { o.state_dtype = at::kLong; }),
                 "state_dtype must be float, double, half or bfloat16, got Long");
  EXPECT_MESSAGE(with([](auto&, auto& s) { s.lr = -1; }), "lr must be at least 0");
  EXPECT_MESSAGE(with([](auto&, auto& s) { s.beta1 = 1; }), "beta1 must be in [0, 1)");
  EXPECT_MESSAGE(with([](auto&, auto& s) { s.beta2 = -0.1; }), "beta2 must be in [0, 1)");
  EXPECT_MESSAGE(with([](auto&, auto& s) { s.eps = std::nan(""); }), "eps must be at least 0");
  EXPECT_MESSAGE(with([](auto&, auto& s) { s.weight_decay = -1; }), "weight_decay must be");
}

// Scenario 23: no silent plain Adam.
TEST_F(FaultsTest, AmsgradSwitchedOnLaterIsRefused) {
  const auto groups = plain_groups(kSizes);
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(), groups);
  gradients.set(groups, 0);
  adam.settings(0).amsgrad = true;
  EXPECT_MESSAGE(adam.step(), "amsgrad of group 0 was switched on");
  adam.settings(0).amsgrad = false;
  adam.step();
}

}  // namespace
}  // namespace swapline::testing
