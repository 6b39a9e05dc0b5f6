// Whoever waits for the device waits for autograd's thread too, which holds a node's tensors until
// it is through with it.
#include "sim/torch/idle.h"

#include "tests/support/sim_test.h"

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace swapline::sim {
namespace {

using namespace std::chrono_literals;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a node does on autograd's thread, for as long as the test wants.
struct Gate {
  std::function<void()> run;
  std::promise<void> begun;
  bool is_over = false;
};

struct GateHolder : torch::CustomClassHolder {
  explicit GateHolder(Gate& gate) : gate(gate) {}
  Gate& gate;
};

struct Gated : torch::autograd::Function<Gated> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const c10::intrusive_ptr<GateHolder>& gate) {
    context->saved_data["gate"] = c10::IValue::make_capsule(gate);
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    Gate& gate =
        c10::static_intrusive_pointer_cast<GateHolder>(context->saved_data["gate"].toCapsule())
            ->gate;
    gate.begun.set_value();
    gate.run();
    gate.is_over = true;
    return {grads[0], at::Tensor()};
  }
};

void run_backward(Gate& gate) {
  const at::Tensor x = at::ones({8}, at::TensorOptions().device(device())).set_requires_grad(true);
  torch::autograd::backward({Gated::apply(x, c10::make_intrusive<GateHolder>(gate))},
                            {at::ones({8}, x.options())});
}

class IdleTest : public testing::SimTest {
 protected:
  // `wait` must not return before a backward of another thread is through.
  static void expect_waits_for_backward(const std::function<void()>& wait) {
    std::promise<void> opened;
    Gate gate;
    gate.run = [&] { opened.get_future().wait(); };
    auto begun = gate.begun.get_future();
    std::thread training([&] { run_backward(gate); });
    begun.wait();
    auto waited = std::async(std::launch::async, [&] {
      wait();
      return gate.is_over;
    });
    EXPECT_EQ(waited.wait_for(50ms), std::future_status::timeout);
    opened.set_value();
    EXPECT_TRUE(waited.get());
    training.join();
  }
};

TEST_F(IdleTest, WaitsForAutogradsThread) {
  expect_waits_for_backward([] { wait_until_idle(0); });
  expect_waits_for_backward([] { wait_until_idle(); });
}

TEST_F(IdleTest, SynchronizingTheDeviceWaitsForAutogradsThread) {
  expect_waits_for_backward(
      [] { c10::impl::VirtualGuardImpl(device().type()).synchronizeDevice(0); });
}

TEST_F(IdleTest, ReplacingTheMachineWaitsForAutogradsThread) {
  expect_waits_for_backward([] {
    try {
      configure(testing::machine());
    } catch (const c10::Error&) {  // the other thread's tensors may still be there
    }
  });
}

TEST_F(IdleTest, InsideABackwardNobodyWaitsForItself) {
  Gate gate;
  gate.run = [] {
    wait_until_idle();
    c10::impl::VirtualGuardImpl(device().type()).synchronizeDevice(0);
  };
  run_backward(gate);
  EXPECT_TRUE(gate.is_over);
}

TEST_F(IdleTest, TheEndOfAProcessDoesNotWaitForEver) {
  std::promise<void> opened;
  Gate gate;
  gate.run = [&] { opened.get_future().wait(); };
  auto begun = gate.begun.get_future();
  std::thread training([&] { run_backward(gate); });
  begun.wait();
  EXPECT_FALSE(wait_until_idle_for(50ms));
  opened.set_value();
  training.join();
  EXPECT_TRUE(wait_until_idle_for(60s));
}

TEST_F(IdleTest, CostsNoVirtualTimeAndNoMemory) {
  const Nanos before = sim().host_time(0);
  const auto launched = sim().counters(0).num_ops;
  const c10::InferenceMode inference;
  wait_until_idle();
  EXPECT_EQ(sim().host_time(0), before);
  EXPECT_EQ(sim().counters(0).num_ops, launched);
  EXPECT_EQ(sim().memory_stats(0).peak_allocated_bytes, 0U);
}

// Each case runs in a process of its own: here the first tensor is one without grad.
TEST(LoadedInTimeTest, TheFirstTensorMayBeMadeWithoutGrad) {
  const at::NoGradGuard no_grad;
  EXPECT_EQ(at::ones({2}, at::TensorOptions().device(device())).numel(), 2);
}

}  // namespace
}  // namespace swapline::sim
