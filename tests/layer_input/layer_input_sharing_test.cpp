// Inputs that others look at too: two layers over one storage, hooks, inference before training;
// the hints of schedules; and how much host memory all of it takes.
#include "tests/support/errors.h"
#include "tests/support/late_layers_test.h"

#include <vector>

namespace swapline {
namespace {

using testing::random_parameter;
using testing::random_tensor;
using testing::same_bits;
using testing::SwappedLayers;
using testing::TinyModel;

using Tensors = std::vector<at::Tensor>;

class LayerInputSharingTest : public testing::LateLayersTest {
 protected:
  static LayerInputOptions all_swapped() {
    LayerInputOptions options = six_layers();
    options.keep_last = 0;
    return options;
  }
};

at::Tensor square_layer(const at::Tensor& h) {
  return h * h.exp();
}

using Branches = std::vector<at::Tensor (*)(const at::Tensor&)>;

// `branches` of one tensor, each through two recomputed layers; the gradient of the tensor.
at::Tensor gradient_through(LayerInputs& inputs, const Branches& branches) {
  const at::Tensor x = random_tensor({12, 12}, 4).set_requires_grad(true);
  const at::Tensor h = x * 0.5;
  at::Tensor sum = h.sum();
  for (const auto branch : branches) {
    at::Tensor each = branch(h);
    for (int i = 0; i < 2; ++i) {
      each = inputs.recompute(square_layer, each);
    }
    sum = sum + each.sum();
  }
  sum.backward();
  return x.grad().cpu();
}

// Recompute without swap has the same order of additions.
bool has_the_same_bits_swapped(const Branches& branches) {
  LayerInputOptions kept;
  kept.enabled = false;
  SwappedLayers plain(kept);
  SwappedLayers swapped;
  const bool is_same = same_bits(gradient_through(swapped.inputs, branches),
                                 gradient_through(plain.inputs, branches));
  return is_same && swapped.inputs.stats().num_swapped_out > 0;
}

TEST_F(LayerInputSharingTest, TwoLayersOverOneStorage) {
  EXPECT_TRUE(has_the_same_bits_swapped(
      {[](const at::Tensor& h) { return h; }, [](const at::Tensor& h) { return h; }}));
}

TEST_F(LayerInputSharingTest, OverlappingViewsOfOneStorage) {
  const Branches branches = {[](const at::Tensor& h) { return h.slice(0, 0, 8); },
                             [](const at::Tensor& h) { return h.slice(0, 4, 12).t(); },
                             [](const at::Tensor& h) { return h.as_strided({6, 5}, {7, 2}, 3); },
                             [](const at::Tensor& h) { return h.slice(1, 0, 1).expand({12, 3}); }};
  EXPECT_TRUE(has_the_same_bits_swapped(branches));
}

TEST_F(LayerInputSharingTest, AHookOnHiddenStatesSeesItsGradient) {
  const auto run = [](LayerInputs* inputs) {
    TinyModel model;
    Tensors seen;
    at::Tensor h = model.embed(model.batch(0));
    for (int64_t i = 0; i < 6; ++i) {
      h.register_hook([&seen](const at::Tensor& grad) { seen.push_back(grad.cpu()); });
      h = inputs == nullptr
              ? model.run_layer(i, h)
              : inputs->recompute([&, i](const at::Tensor& in) { return model.run_layer(i, in); },
                                  h);
    }
    h.square().mean().backward();
    return seen;
  };
  SwappedLayers swapped;
  const Tensors seen = run(&swapped.inputs);
  EXPECT_EQ(seen.size(), 6U);
  EXPECT_TRUE(same_bits(seen, run(nullptr)));
}

TEST_F(LayerInputSharingTest, InferenceFirstThenTraining) {
  TinyModel model;
  TinyModel plain;
  SwappedLayers swapped(all_swapped());
  {
    const c10::InferenceMode inference;
    model.forward(&swapped.inputs, model.batch(1));
  }
  model.forward(&swapped.inputs, model.batch(0)).backward();
  plain.forward(nullptr, plain.batch(0)).backward();
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), plain.grads_on_cpu()));
}

TEST_F(LayerInputSharingTest, AHintBringsBackTheLastInputOfItsPass) {
  for (const bool hinted : {true, false}) {
    TinyModel model;
    TinyModel plain;
    SwappedLayers swapped(all_swapped());
    Tensors losses;
    Tensors expected;
    for (int64_t i = 0; i < 3; ++i) {
      swapped.inputs.begin_microbatch(i);
      losses.push_back(model.forward(&swapped.inputs, model.batch(i)));
      expected.push_back(plain.forward(nullptr, plain.batch(i)));
    }
    for (int64_t i = 0; i < 3; ++i) {
      if (hinted) {
        swapped.inputs.prefetch(i);
      }
      losses[i].backward();
      expected[i].backward();
    }
    // Without hints each backward but the recalled one starts with a miss.
    EXPECT_EQ(swapped.inputs.stats().num_prefetch_misses, hinted ? 0 : 3);
    EXPECT_TRUE(same_bits(model.grads_on_cpu(), plain.grads_on_cpu()));
  }
}

TEST_F(LayerInputSharingTest, WrongHintsChangeNoBit) {
  TinyModel model;
  TinyModel plain;
  SwappedLayers swapped(all_swapped());
  swapped.inputs.prefetch(99);
  Tensors losses;
  for (int64_t i = 0; i < 3; ++i) {
    swapped.inputs.begin_microbatch(i % 2);
    losses.push_back(model.forward(&swapped.inputs, model.batch(i)));
    swapped.inputs.prefetch(0);
  }
  for (const int64_t i : {1, 2, 0}) {
    swapped.inputs.prefetch(1);
    swapped.inputs.prefetch(-4);
    losses[i].backward();
  }
  Tensors expected;
  for (int64_t i = 0; i < 3; ++i) {
    expected.push_back(plain.forward(nullptr, plain.batch(i)));
  }
  for (const int64_t i : {1, 2, 0}) {
    expected[i].backward();
  }
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), plain.grads_on_cpu()));
}

TEST_F(LayerInputSharingTest, HostBytesAreTheSwappedLayersTimesThePassesInFlight) {
  constexpr size_t kInputBytes = 33 * 29 * 4;
  for (const int64_t keep_last : {0, 1, 2}) {
    LayerInputOptions options = all_swapped();
    options.keep_last = keep_last;
    SwappedLayers swapped(options);
    TinyModel model;
    Tensors losses;
    for (int64_t in_flight = 1; in_flight <= 4; ++in_flight) {
      losses.push_back(model.forward(&swapped.inputs, model.batch(in_flight)));
      EXPECT_EQ(swapped.context->host().stats().requested_bytes,
                static_cast<size_t>((6 - keep_last) * in_flight) * kInputBytes);
    }
    for (const at::Tensor& loss : losses) {
      loss.backward();
    }
    EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
  }
}

// The sum over the passes in flight of what each has swapped, whatever their sizes.
TEST_F(LayerInputSharingTest, HostBytesAddUpOverPassesOfDifferentSizes) {
  LayerInputOptions options = all_swapped();
  options.keep_last = kAuto;  // keeps the first pass's last input, then sees others in flight
  SwappedLayers swapped(options);
  TinyModel model;
  Tensors losses;
  size_t expected = 0;
  size_t num_swapped = 6 - 1;
  for (const int64_t rows : {33, 5, 64, 17}) {
    losses.push_back(model.forward(&swapped.inputs, random_tensor({rows, 29}, 8)));
    expected += num_swapped * static_cast<size_t>(rows) * 29 * 4;
    num_swapped = 6;
    EXPECT_EQ(swapped.context->host().stats().requested_bytes, expected);
  }
  losses.erase(losses.begin() + 2);  // dropped without a backward
  expected -= size_t{6} * 64 * 29 * 4;
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, expected);
  for (const at::Tensor& loss : losses) {
    loss.backward();
  }
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
}

}  // namespace
}  // namespace swapline
