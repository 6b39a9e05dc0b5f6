// Parameters that come later, lie on several devices, or change after the optimizer was made.
#include "tests/optimizer/lost_device.h"
#include "tests/optimizer/training.h"
#include "tests/support/errors.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

namespace swapline::testing {
namespace {

AdamOptions placed(bool swap) {
  AdamOptions options;
  options.placement = swap ? StatePlacement::kSwap : StatePlacement::kDevice;
  return options;
}

class ParamsTest : public OptimizerTest {
 protected:
  static at::Tensor moved(const at::Tensor& param, int index) {
    return param.detach().to(device(index)).requires_grad_(true);
  }
  static void set_ones(const std::vector<AdamGroup>& groups, int step) {
    for (const auto& group : groups) {
      for (const auto& param : group.params) {
        param.mutable_grad() =
            at::ones(param.sizes(), param.options().requires_grad(false)).mul_(step + 1);
      }
    }
  }
};

TEST_F(ParamsTest, AGroupAddedLaterIsUpdatedAsIfItsParametersHadNoGradientBefore) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool swap : {false, true}) {
    auto groups = plain_groups({{300, 40}, {7}});
    auto late = plain_groups({{500, 60}, {33}}, {.lr = 0.1});
    Adam adam(swap ? make_context() : nullptr, groups, placed(swap));
    const Gradients gradients(groups, 6, false);
    const Gradients late_gradients(late, 6, false);
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        adam.prefetch();
        adam.add_group(late[0]);
        EXPECT_EQ(adam.num_groups(), 2u);
        EXPECT_EQ(adam.params(1).size(), 2u);
      }
      gradients.set(groups, step);
      late_gradients.set(late, step);
      adam.prefetch();
      adam.step();
    }
    groups.push_back(late[0]);
    results[swap ? 1 : 0] = snapshot(adam, groups);
    EXPECT_EQ(results[swap ? 1 : 0].at("param2.step").item<float>(), 3.0F);
    EXPECT_EQ(results[swap ? 1 : 0].at("param0.step").item<float>(), 6.0F);
  }
  expect_equal(results[1], results[0]);
}

TEST_F(ParamsTest, AGroupThatIsRefusedChangesNothing) {
  const auto groups = plain_groups({{300, 40}, {7}});
  const auto context = make_context();
  Adam adam(context, groups);
  const Gradients gradients(groups, 2, false);
  gradients.set(groups, 0);
  adam.step();
  const auto stats = adam.stats();
  const auto pinned = context->host().stats().requested_bytes;
  const auto refuse = [&](AdamGroup group, const std::string& why) {
    EXPECT_THAT(message_of([&] { adam.add_group(group); }), ::testing::HasSubstr(why));
    EXPECT_EQ(adam.num_groups(), 1u);
    EXPECT_EQ(adam.stats().state_bytes, stats.state_bytes);
    EXPECT_EQ(adam.stats().num_chunks, stats.num_chunks);
    EXPECT_EQ(context->host().stats().requested_bytes, pinned);
  };
  refuse({{make_param({5}, 1), groups[0].params[1]}, {}},
         "parameter 1 of group 1 is also parameter 1 of group 0");
  refuse({{make_param({5}, 1), at::Tensor()}, {}}, "parameter 1 of group 1 is undefined");
  refuse({{make_param({5}, 1).detach().cpu()}, {}}, "parameter 0 of group 1 is on cpu");
  refuse({{make_param({5}, 1)}, {.lr = -1}}, "lr must be at least 0");
  {
    sim::Faults faults;
    faults.fail_pinned_allocation = 0;
    set_faults(faults);
    const AdamGroup large{{make_param({5}, 1), make_param({700, 1000}, 1)}, {}};
    EXPECT_THROW(adam.add_group(large), std::exception);
    set_faults({});
    EXPECT_EQ(adam.num_groups(), 1u);
    EXPECT_EQ(adam.stats().num_chunks, stats.num_chunks);
    adam.add_group(large);
    EXPECT_EQ(adam.num_groups(), 2u);
  }
  gradients.set(groups, 1);
  adam.step();
  EXPECT_EQ(adam.state(groups[0].params[0]).at("step").item<float>(), 2.0F);
}

TEST_F(ParamsTest, ParametersOnSeveralDevicesHaveTheBitsOfAnOptimizerForEach) {
  std::map<std::string, at::Tensor> together;
  std::map<std::string, at::Tensor> apart;
  for (const bool is_one : {true, false}) {
    auto groups = plain_groups({{300, 40}, {200, 50}, {7}, {64}}, {.weight_decay = 0.1});
    groups[0].params[1] = moved(groups[0].params[1], 1);
    groups[0].params[3] = moved(groups[0].params[3], 1);
    const std::vector<std::shared_ptr<SwapContext>> contexts = {
        std::make_shared<SwapContext>(device(0)), std::make_shared<SwapContext>(device(1))};
    if (is_one) {
      Adam adam(contexts, groups);
      EXPECT_EQ(adam.params(0).size(), 4u);
      for (int step = 0; step < 4; ++step) {
        set_ones(groups, step);
        adam.prefetch();
        adam.step();
      }
      together = snapshot(adam, groups);
      EXPECT_EQ(adam.device_state_bytes(), 0u);
      EXPECT_EQ(adam.stats().state_bytes, 8u * (12000 + 10000 + 7 + 64));
    } else {
      for (const int index : {0, 1}) {
        const std::vector<AdamGroup> half = {
            {{groups[0].params[index], groups[0].params[index + 2]}, groups[0].settings}};
        Adam adam(contexts[static_cast<size_t>(index)], half);
        for (int step = 0; step < 4; ++step) {
          set_ones(half, step);
          adam.step();
        }
        for (const auto& [name, tensor] : snapshot(adam, half)) {
          const int number = (name[5] - '0') * 2 + index;
          apart["param" + std::to_string(number) + name.substr(6)] = tensor;
        }
      }
    }
  }
  expect_equal(together, apart);
}

TEST_F(ParamsTest, AGradientRefusedOnOneDeviceLeavesTheOtherUntouched) {
  auto groups = plain_groups({{300, 40}, {64}});
  groups[0].params[1] = moved(groups[0].params[1], 1);
  Adam adam({std::make_shared<SwapContext>(device(0)), std::make_shared<SwapContext>(device(1))},
            groups);
  const auto before = groups[0].params[0].detach().cpu();
  set_ones(groups, 0);
  groups[0].params[1].mutable_grad() = at::ones({64});
  EXPECT_THAT(message_of([&] { adam.step(); }),
              ::testing::HasSubstr("the gradient of parameter 1 of group 0 is on cpu"));
  EXPECT_TRUE(at::equal(groups[0].params[0].detach().cpu(), before));
  EXPECT_EQ(adam.device_state_bytes(), 0u);
  set_ones(groups, 0);
  adam.step();
}

// What could be repeated on the second device cannot: the first one has been updated.
TEST_F(ParamsTest, AFailureAfterAnotherDeviceWasUpdatedIsSaidNowAndAtEveryLaterStep) {
  auto groups = plain_groups({{300, 40}, {64}});
  groups[0].params[1] = moved(groups[0].params[1], 1);
  SwapContextOptions options;
  options.order = std::make_shared<LostDevice>(Wait::kUpdateAfterLoad, 0);
  Adam adam(
      {std::make_shared<SwapContext>(device(0)), std::make_shared<SwapContext>(device(1), options)},
      groups);
  set_ones(groups, 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(message_of([&] { adam.step(); }),
                ::testing::HasSubstr("failed on one device after others had been updated"));
    EXPECT_EQ(adam.device_state_bytes(), 0u);
  }
  EXPECT_EQ(adam.state(groups[0].params[0]).at("step").item<float>(), 1.0F);
  EXPECT_TRUE(adam.state(groups[0].params[1]).empty());
}

// set_data with a tensor of the same kind is what loading a checkpoint does: the states go on.
TEST_F(ParamsTest, AParameterMayGetOtherDataOfTheSameKind) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool swap : {false, true}) {
    const auto groups = plain_groups({{300, 40}, {7}});
    Adam adam(swap ? make_context() : nullptr, groups, placed(swap));
    const Gradients gradients(groups, 4, false);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        groups[0].params[0].set_data(make_param({300, 40}, 77).detach());
      }
      gradients.set(groups, step);
      adam.step();
    }
    results[swap ? 1 : 0] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

TEST_F(ParamsTest, AParameterThatIsNoLongerWhatItWasIsRefused) {
  const auto refuse = [&](const at::Tensor& data, const std::string& why) {
    const auto groups = plain_groups({{30, 40}, {7}});
    Adam adam(make_context(), groups);
    const auto before = groups[0].params[1].detach().cpu();
    groups[0].params[0].set_data(data);
    set_ones(groups, 0);
    EXPECT_THAT(message_of([&] { adam.step(); }), ::testing::HasSubstr(why));
    EXPECT_TRUE(at::equal(groups[0].params[1].detach().cpu(), before));
  };
  const auto like = make_param({30, 40}, 1).detach();
  refuse(like.t(), "changed its sizes or strides");
  refuse(like.to(at::kBFloat16), "was Float on sim:0 when the optimizer was made and is BFloat16");
  refuse(like.to(device(1)), "and is Float on sim:1: make a new optimizer");
}

// As torch.optim's users do who delete an entry of `state`.
TEST_F(ParamsTest, AParameterWhoseStatesAreClearedBeginsAnew) {
  for (const bool swap : {false, true}) {
    const auto groups = plain_groups({{300, 40}, {7}});
    Adam adam(swap ? make_context() : nullptr, groups, placed(swap));
    const at::Tensor& cleared = groups[0].params[0];
    const std::vector<std::string> names = {"step", "exp_avg", "exp_avg_sq"};
    EXPECT_EQ(adam.state_names(cleared), names);
    set_ones(groups, 0);
    adam.step();
    adam.clear_state(cleared);
    EXPECT_TRUE(adam.state(cleared).empty());
    auto fresh = plain_groups({{300, 40}});
    fresh[0].params[0].set_data(cleared.detach().clone());
    Adam other(nullptr, fresh, placed(false));
    set_ones(groups, 1);
    set_ones(fresh, 1);
    adam.step();
    other.step();
    expect_equal(snapshot(adam, {{{cleared}, {}}}), snapshot(other, fresh));
    EXPECT_EQ(adam.state(groups[0].params[1]).at("step").item<float>(), 2.0F);
  }
}

TEST_F(ParamsTest, NamesOfStatesAreThoseThatAnUpdatedParameterHas) {
  AdamGroup group = {{make_param({16, 8}, 1, at::kBFloat16)}, {.amsgrad = true}};
  AdamOptions options;
  options.master_weights = true;
  Adam adam(make_context(), {group}, options);
  const std::vector<std::string> names = {
      "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "master_param"};
  EXPECT_EQ(adam.state_names(group.params[0]), names);
  EXPECT_TRUE(adam.state(group.params[0]).empty());
  EXPECT_EQ(adam.make_state(group.params[0]).size(), names.size());
}

}  // namespace
}  // namespace swapline::testing
