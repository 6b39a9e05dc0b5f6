// Every device allocation, pinned allocation and copy of a step fails in turn, and layers throw:
// the step ends with the right bits or a clear error, afterwards nothing is held, and the next step
// is right.
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::SwappedLayers;
using testing::TinyModel;

using Tensors = std::vector<at::Tensor>;

TinyModel small_model() {
  return TinyModel({.num_layers = 5, .batch = 9, .width = 7});
}

LayerInputOptions five_layers() {
  LayerInputOptions options;
  options.num_layers = 5;
  return options;
}

class LayerInputFaultsTest : public testing::SimTest {
 protected:
  // Gradients of one step; the parameters have none afterwards.
  static Tensors step(TinyModel& model, LayerInputs* inputs, const at::Tensor& x) {
    try {
      model.forward(inputs, x).backward();
    } catch (...) {
      clear_grads(model);
      throw;
    }
    Tensors grads;
    for (const at::Tensor& parameter : model.parameters()) {
      grads.push_back(parameter.grad());
    }
    clear_grads(model);
    return grads;
  }
  static void clear_grads(TinyModel& model) {
    for (const at::Tensor& parameter : model.parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
  }

  static void expect_nothing_held(SwappedLayers& swapped, size_t allocated_before) {
    sim().synchronize_device(0);
    swapped.context->settle_done();
    EXPECT_EQ(swapped.context->pending_release_bytes(), 0U);
    EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
    EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
    EXPECT_EQ(sim().memory_stats(0).allocated_bytes, allocated_before);
  }

  // Fails each one of `count_now` events of a step in turn, by `fail(k)`.
  void fail_each(const std::function<int64_t()>& count_now,
                 const std::function<sim::Faults(int64_t)>& fail);
};

void LayerInputFaultsTest::fail_each(const std::function<int64_t()>& count_now,
                                     const std::function<sim::Faults(int64_t)>& fail) {
  TinyModel model = small_model();
  const at::Tensor x = model.batch(0);
  int64_t num_events = 0;
  Tensors expected;
  {
    SwappedLayers swapped(five_layers());
    const int64_t before = count_now();
    expected = step(model, &swapped.inputs, x);
    num_events = count_now() - before;
  }
  ASSERT_GT(num_events, 0);
  int64_t num_errors = 0;
  for (int64_t k = 0; k < num_events; ++k) {
    const size_t allocated = sim().memory_stats(0).allocated_bytes;
    SwappedLayers swapped(five_layers());
    set_faults(fail(k));
    std::optional<Tensors> got;
    const std::string message = message_of([&] { got = step(model, &swapped.inputs, x); });
    set_faults({});
    if (got) {
      EXPECT_TRUE(testing::same_bits(*got, expected)) << "fault " << k;
      got.reset();
    } else {
      ++num_errors;
      EXPECT_FALSE(message.empty());
    }
    expect_nothing_held(swapped, allocated);
    EXPECT_TRUE(testing::same_bits(step(model, &swapped.inputs, x), expected))
        << "after fault " << k;
    expect_nothing_held(swapped, allocated);
  }
  RecordProperty("faults", std::to_string(num_events));
  RecordProperty("errors", std::to_string(num_errors));
}

TEST_F(LayerInputFaultsTest, EveryDeviceAllocationOfAStepFails) {
  fail_each([] { return sim().memory_stats(0).num_allocations; },
            [](int64_t k) {
              sim::Faults faults;
              faults.fail_device_allocation = k;
              return faults;
            });
}

TEST_F(LayerInputFaultsTest, EveryPinnedAllocationOfAStepFails) {
  fail_each([] { return sim().pinned_stats().num_allocations; },
            [](int64_t k) {
              sim::Faults faults;
              faults.fail_pinned_allocation = k;
              return faults;
            });
}

TEST_F(LayerInputFaultsTest, EveryCopyOfAStepFails) {
  fail_each([] { return sim().counters(0).num_copies_in + sim().counters(0).num_copies_out; },
            [](int64_t k) {
              sim::Faults faults;
              faults.fail_copy = k;
              return faults;
            });
}

TEST_F(LayerInputFaultsTest, EveryFaultWithLateCopiesToo) {
  use_machine({.late_copies = true, .copy_slowdown = 20});
  fail_each([] { return sim().counters(0).num_copies_in + sim().counters(0).num_copies_out; },
            [](int64_t k) {
              sim::Faults faults;
              faults.fail_copy = k;
              faults.copy_slowdown = 20;
              return faults;
            });
}

TEST_F(LayerInputFaultsTest, APrefetchThatFailsIsTriedAgainWhenNeeded) {
  TinyModel model = small_model();
  const at::Tensor x = model.batch(0);
  const Tensors expected = step(model, nullptr, x);
  SwappedLayers swapped(five_layers());
  const at::Tensor loss = model.forward(&swapped.inputs, x);
  sim::Faults faults;
  faults.fail_copy = 0;
  set_faults(faults);
  loss.backward();
  EXPECT_EQ(swapped.inputs.stats().num_failed_prefetches, 1);
  EXPECT_EQ(swapped.inputs.stats().num_prefetch_misses, 1);
  Tensors grads;
  for (const at::Tensor& parameter : model.parameters()) {
    grads.push_back(parameter.grad());
  }
  EXPECT_TRUE(testing::same_bits(grads, expected));
}

// Layer `failing` throws at its `at_call`-th call: 1 is forward, 2 is the recompute.
void throw_in_a_layer(
    LayerInputs& inputs, TinyModel& model, const at::Tensor& x, int64_t failing, int at_call) {
  at::Tensor h = model.embed(x);
  auto calls = std::make_shared<int>(0);
  for (int64_t i = 0; i < 5; ++i) {
    h = inputs.recompute(
        [&model, i, failing, at_call, calls](const at::Tensor& in) {
          if (i == failing && ++*calls == at_call) {
            throw std::runtime_error("layer " + std::to_string(i) + " gives up");
          }
          return model.run_layer(i, in);
        },
        h);
  }
  h.square().mean().backward();
}

TEST_F(LayerInputFaultsTest, AnExceptionInForwardOrBackwardLeavesNothingBehind) {
  for (const bool late : {false, true}) {
    use_machine({.late_copies = late, .copy_slowdown = 20});
    TinyModel model = small_model();
    const at::Tensor x = model.batch(0);
    const Tensors expected = step(model, nullptr, x);
    const size_t allocated = sim().memory_stats(0).allocated_bytes;
    LayerInputOptions strict = five_layers();
    strict.max_swapping_out = 1;
    SwappedLayers swapped(strict);
    for (const int at_call : {1, 2}) {
      for (int64_t failing = 0; failing < 5; ++failing) {
        const std::string message =
            message_of([&] { throw_in_a_layer(swapped.inputs, model, x, failing, at_call); });
        EXPECT_THAT(message, HasSubstr("layer " + std::to_string(failing) + " gives up"));
        clear_grads(model);
        expect_nothing_held(swapped, allocated);
        EXPECT_TRUE(testing::same_bits(step(model, &swapped.inputs, x), expected));
        EXPECT_LE(swapped.inputs.stats().peak_resident_inputs, 1);
      }
    }
  }
}

TEST_F(LayerInputFaultsTest, ADeviceThatFillsUpInBackwardIsAClearErrorAndTheNextStepIsRight) {
  use_machine({.capacity_bytes = size_t{16} << 20});
  TinyModel model({.num_layers = 5, .batch = 1 << 12, .width = 64});  // inputs of 1 MiB
  const at::Tensor x = model.batch(0);
  SwappedLayers swapped(five_layers());
  const Tensors expected = step(model, &swapped.inputs, x);
  {
    const at::Tensor loss = model.forward(&swapped.inputs, x);
    sim().empty_cache(0);
    sim().take_away(0, sim().options().spec.memory_bytes);
    EXPECT_THROW(loss.backward(), c10::OutOfMemoryError);
    sim().take_away(0, 0);
    clear_grads(model);
  }
  EXPECT_TRUE(testing::same_bits(step(model, &swapped.inputs, x), expected));
}

}  // namespace
}  // namespace swapline
