// Inputs saved for a framework that runs its layers one after the other and each again in backward:
// recompute()'s time, memory and bits, the learned lag included.
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <utility>
#include <vector>

namespace swapline {
namespace {

using testing::random_parameter;
using testing::random_tensor;
using testing::same_bits;
using testing::SwappedLayers;

constexpr int64_t kNumLayers = 8;
constexpr int64_t kWidth = 64;

LayerInputOptions eight_layers(int64_t max_swapping_out) {
  LayerInputOptions options;
  options.num_layers = kNumLayers;
  options.max_swapping_out = max_swapping_out;
  return options;
}

struct Model {
  std::vector<at::Tensor> parameters;

  Model() {
    for (int64_t i = 0; i < kNumLayers; ++i) {
      parameters.push_back(random_parameter({kWidth, 4 * kWidth}, 2 * i));
      parameters.push_back(random_parameter({4 * kWidth, kWidth}, 2 * i + 1));
    }
  }
  at::Tensor run_layer(int64_t i, const at::Tensor& h) const {
    return h + at::mm(at::gelu(at::mm(h, parameters[2 * i])), parameters[2 * i + 1]);
  }
  std::vector<at::Tensor> grads_on_cpu() const {
    std::vector<at::Tensor> grads;
    for (const at::Tensor& parameter : parameters) {
      grads.push_back(parameter.grad().cpu());
    }
    return grads;
  }
};

void by_recompute(LayerInputs& inputs, const Model& model, const at::Tensor& x) {
  at::Tensor h = x * 1;
  for (int64_t i = 0; i < kNumLayers; ++i) {
    h = inputs.recompute([&, i](const at::Tensor& in) { return model.run_layer(i, in); }, h);
  }
  h.sum().backward();
}

// What a framework's own recompute function does.
struct Framework {
  bool tells = true;  // when a layer has run again

  void operator()(LayerInputs& inputs, const Model& model, const at::Tensor& x) const {
    std::vector<SavedInput> saved;
    at::Tensor h = (x * 1).detach();
    for (int64_t i = 0; i < kNumLayers; ++i) {
      const c10::NoGradGuard no_grad;
      saved.push_back(inputs.save_for_recompute(h, /*begins_pass=*/i == 0));
      h = model.run_layer(i, h);
    }
    at::Tensor grad = at::ones_like(h);
    h.reset();
    for (int64_t i = kNumLayers - 1; i >= 0; --i) {
      grad = backward(saved.back(), model, i, grad);
      saved.back().finish();
      saved.pop_back();
    }
  }
  at::Tensor backward(SavedInput& saved,
                      const Model& model,
                      int64_t i,
                      const at::Tensor& grad) const {
    const at::Tensor input = saved.take().set_requires_grad(true);
    at::Tensor output = model.run_layer(i, input);
    if (tells) {
      saved.recomputed({output});
    }
    std::exchange(output, {}).backward(grad);
    return input.grad();
  }
};

struct Measured {
  size_t peak_allocated = 0;
  double step_ns = 0;
  LayerInputStats stats;
  std::vector<at::Tensor> grads;
};

class SavedForRecomputeTest : public testing::SimTest {
 protected:
  template <typename Step>
  Measured measure(int64_t most, double slowdown, const Step& step) {
    use_machine({.late_copies = true, .copy_slowdown = slowdown});
    const Model model;
    SwappedLayers swapped(eight_layers(most));
    const at::Tensor x = random_tensor({2048, kWidth}, 5).set_requires_grad(true);
    for (int64_t i = 0; i < 6; ++i) {
      step(swapped.inputs, model, x);
    }
    swapped.inputs.reset_stats();
    sim().reset_peak_memory(0);
    const double before = device_ns();
    for (int64_t i = 0; i < 3; ++i) {
      step(swapped.inputs, model, x);
    }
    return {sim().memory_stats(0).peak_allocated_bytes,
            (device_ns() - before) / 3,
            swapped.inputs.stats(),
            model.grads_on_cpu()};
  }
  static double device_ns() {
    sim().synchronize_device(0);
    return static_cast<double>(sim().stream_time(0, 0));
  }
};

TEST_F(SavedForRecomputeTest, HasTheBitsAndCountsOfRecompute) {
  const Measured expected = measure(1, 1, by_recompute);
  const Measured got = measure(1, 1, Framework());
  EXPECT_TRUE(same_bits(got.grads, expected.grads));
  EXPECT_EQ(got.stats.num_swapped_out, expected.stats.num_swapped_out);
  EXPECT_EQ(got.stats.num_prefetch_misses, 0);
  EXPECT_EQ(got.stats.num_kept_on_device, 3);
  EXPECT_LE(got.stats.peak_resident_inputs, 1);
}

TEST_F(SavedForRecomputeTest, LearnsToBeFasterThanStrictOnASlowLinkAtThePeakOfStrict) {
  const Measured strict = measure(1, 30, Framework());
  const Measured learned = measure(kAuto, 30, Framework());
  EXPECT_LT(learned.step_ns, strict.step_ns);
  EXPECT_LE(learned.peak_allocated, strict.peak_allocated);
  EXPECT_GT(learned.stats.peak_resident_inputs, 1);
  EXPECT_TRUE(same_bits(learned.grads, strict.grads));
}

TEST_F(SavedForRecomputeTest, IsStrictWhenNobodyTellsOfTheSecondRun) {
  const Measured strict = measure(1, 30, Framework());
  const Measured untold = measure(kAuto, 30, Framework{.tells = false});
  EXPECT_LE(untold.peak_allocated, strict.peak_allocated);
  EXPECT_LE(untold.stats.peak_resident_inputs, 1);
  EXPECT_TRUE(same_bits(untold.grads, strict.grads));
}

TEST_F(SavedForRecomputeTest, WhatIsPutBackLeavesTheDeviceUntilItIsTakenAgain) {
  use_machine({.late_copies = true});
  SwappedLayers swapped(eight_layers(1));
  at::Tensor x = random_tensor({64, kWidth}, 1) * 1;
  const at::Tensor expected = x.cpu();
  SavedInput first = swapped.inputs.save_for_recompute(x, /*begins_pass=*/true);
  SavedInput second = swapped.inputs.save_for_recompute(x * 2, /*begins_pass=*/false);
  x.reset();
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits({second.take().cpu()}, {(expected * 2)}));
    second.put_back();
    EXPECT_TRUE(same_bits({first.take().cpu()}, {expected}));
    first.put_back();
    EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
  }
}

TEST_F(SavedForRecomputeTest, APassBeginsWhereItIsSaid) {
  use_machine({});
  SwappedLayers swapped(eight_layers(1));
  const at::Tensor x = random_tensor({64, kWidth}, 1);
  SavedInput of_former = swapped.inputs.save_for_recompute(x * 1, /*begins_pass=*/true);
  SavedInput first = swapped.inputs.save_for_recompute(x * 2, /*begins_pass=*/true);
  SavedInput second = swapped.inputs.save_for_recompute(x * 3, /*begins_pass=*/false);
  second.take();
  second.finish();
  first.take();  // asked for by the one after it
  first.finish();
  EXPECT_EQ(swapped.inputs.stats().num_prefetch_misses, 0);
  of_former.take();
  EXPECT_EQ(swapped.inputs.stats().num_prefetch_misses, 1);
}

}  // namespace
}  // namespace swapline
