// Who calls step() and around it: closures and hooks, each exactly once.
#include "tests/optimizer/training.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

namespace swapline::testing {
namespace {

using StepCallsTest = OptimizerTest;

TEST_F(StepCallsTest, AClosureIsCalledOnceUnderGradAndItsLossComesBack) {
  const auto groups = plain_groups({{300, 40}, {7}});
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(), groups);
  int num_calls = 0;
  const at::Tensor loss = [&] {
    const c10::NoGradGuard no_grad;  // as a trainer may have it around
    return adam.step([&] {
      ++num_calls;
      EXPECT_TRUE(c10::GradMode::is_enabled());
      gradients.set(groups, 0);
      return at::full({}, 2.5);
    });
  }();
  EXPECT_EQ(num_calls, 1);
  EXPECT_EQ(loss.item<double>(), 2.5);
  EXPECT_EQ(adam.state(groups[0].params[0]).at("step").item<float>(), 1.0F);
}

TEST_F(StepCallsTest, AClosureThatThrowsChangesNothing) {
  const auto groups = plain_groups({{300, 40}});
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(), groups);
  const auto before = groups[0].params[0].detach().cpu();
  const auto broken = [&]() -> at::Tensor {
    gradients.set(groups, 0);
    throw std::runtime_error("no data");
  };
  adam.prefetch();
  EXPECT_THROW(adam.step(broken), std::runtime_error);
  EXPECT_TRUE(at::equal(groups[0].params[0].detach().cpu(), before));
  adam.step();
  EXPECT_EQ(adam.state(groups[0].params[0]).at("step").item<float>(), 1.0F);
}

TEST_F(StepCallsTest, HooksRunOnceAStepInTheirOrder) {
  const auto groups = plain_groups({{300, 40}, {7}});
  const Gradients gradients(groups, 3, false);
  Adam adam(make_context(), groups);
  std::string calls;
  const auto note = [&](const char* name) { return [&calls, name](Optimizer&) { calls += name; }; };
  adam.add_step_pre_hook(note("a"));
  const int64_t second = adam.add_step_pre_hook(note("b"));
  adam.add_step_post_hook(note("z"));
  gradients.set(groups, 0);
  adam.step();
  EXPECT_EQ(calls, "abz");
  adam.remove_hook(second);
  adam.step([&] {
    calls += "c";
    gradients.set(groups, 1);
    return at::Tensor();
  });
  EXPECT_EQ(calls, "abzacz");
}

TEST_F(StepCallsTest, AHookMayRemoveItselfAndChangeSettings) {
  const auto groups = plain_groups({{7}});
  const Gradients gradients(groups, 2, false);
  Adam adam(make_context(), groups);
  int64_t number = -1;
  number = adam.add_step_pre_hook([&](Optimizer& optimizer) {
    optimizer.set_lr(0, 0);
    optimizer.remove_hook(number);
  });
  const auto before = groups[0].params[0].detach().cpu();
  gradients.set(groups, 0);
  adam.step();
  EXPECT_TRUE(at::equal(groups[0].params[0].detach().cpu(), before)) << "lr was 0";
  adam.set_lr(0, 0.1);
  adam.step();
  EXPECT_EQ(adam.lr(0), 0.1) << "the hook is gone";
  EXPECT_FALSE(at::equal(groups[0].params[0].detach().cpu(), before));
}

TEST_F(StepCallsTest, APreHookThatThrowsKeepsTheStepFromBeingDone) {
  const auto groups = plain_groups({{7}});
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(), groups);
  int num_after = 0;
  const int64_t number =
      adam.add_step_pre_hook([](Optimizer&) { throw std::runtime_error("not now"); });
  adam.add_step_post_hook([&](Optimizer&) { ++num_after; });
  gradients.set(groups, 0);
  EXPECT_THROW(adam.step(), std::runtime_error);
  EXPECT_TRUE(adam.state(groups[0].params[0]).empty());
  EXPECT_EQ(num_after, 0);
  adam.remove_hook(number);
  adam.step();
  EXPECT_EQ(num_after, 1);
}

}  // namespace
}  // namespace swapline::testing
