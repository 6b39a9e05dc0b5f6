// Tensors and memory: views, holders, pools, sizes, devices. What people ran into with other
// systems, each tried on layer-input swap.
#include "tests/support/errors.h"
#include "tests/support/late_layers_test.h"

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace swapline {
namespace {

using testing::random_parameter;
using testing::random_tensor;
using testing::same_bits;
using testing::SwappedLayers;
using testing::TinyModel;

using Tensors = std::vector<at::Tensor>;

class LayerInputScenariosTest : public testing::LateLayersTest {};

TEST_F(LayerInputScenariosTest, TinyProductsAndLongElementwiseChainsOverFiftySteps) {
  const auto run = [](bool enabled) {
    LayerInputOptions options = six_layers();
    options.enabled = enabled;
    SwappedLayers swapped(options);
    testing::TrainOptions train;
    train.model = {.num_layers = 6, .batch = 3, .width = 3};
    train.steps = 50;
    return testing::train(train, &swapped.inputs);
  };
  EXPECT_TRUE(same_bits(run(false), run(true)));
}

TEST_F(LayerInputScenariosTest, AHostPoolOfExactlyTheNeededSizeIsEnough) {
  const size_t piece = 33 * 29 * 4 / 512 * 512 + 512;
  SwapContextOptions context;
  context.host.max_bytes = 8 * 4096;  // five pieces of 4096 in slabs of 4096, and room to spare
  context.host.slab_bytes = 4096;
  ASSERT_LE(piece, 4096U);
  SwappedLayers swapped(six_layers(), context);
  testing::TrainOptions train;
  train.steps = 6;
  const auto got = testing::train(train, &swapped.inputs);
  EXPECT_EQ(swapped.inputs.stats().num_host_failures, 0);
  EXPECT_TRUE(same_bits(got, testing::train(train, nullptr)));
}

TEST_F(LayerInputScenariosTest, AViewOfTheInputAndGarbageOfTheSameSizeAfterForward) {
  const at::Tensor weight = random_parameter({16, 16}, 1);
  const auto run = [&](LayerInputs* inputs) {
    at::Tensor h = random_tensor({16, 16}, 2).requires_grad_(true) * 2;
    const auto view = [](const at::Tensor& in) { return in.t(); };
    const auto product = [&](const at::Tensor& in) { return at::mm(in, weight).tanh(); };
    for (int i = 0; i < 3; ++i) {
      h = inputs == nullptr ? view(h) : inputs->recompute(view, h);
      h = inputs == nullptr ? product(h) : inputs->recompute(product, h);
    }
    const at::Tensor loss = h.square().sum();
    h.reset();
    for (int i = 0; i < 8; ++i) {
      const at::Tensor garbage = at::full({16, 16}, 1e9, loss.options());
    }
    loss.backward();
    const at::Tensor grad = weight.grad().cpu();
    weight.mutable_grad() = at::Tensor();
    return grad;
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(LayerInputScenariosTest, TheUserHoldsHiddenStates) {
  TinyModel model;
  SwappedLayers swapped(six_layers());
  Tensors held;
  at::Tensor h = model.embed(model.batch(0));
  for (int64_t i = 0; i < 6; ++i) {
    held.push_back(h);
    h = swapped.inputs.recompute([&, i](const at::Tensor& in) { return model.run_layer(i, in); },
                                 h);
  }
  h.square().mean().backward();
  EXPECT_TRUE(same_bits(grads_of(model), expected_grads(1)));
  EXPECT_GT(swapped.inputs.stats().bytes_not_freed, 0U);
  const c10::NoGradGuard no_grad;
  at::Tensor again = model.embed(model.batch(0));
  for (int64_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(same_bits(held[i], again));
    again = model.run_layer(i, again);
  }
}

TEST_F(LayerInputScenariosTest, AnExpandedInputMovesOnlyItsRealStorage) {
  const at::Tensor weight = random_parameter({8, 8}, 1);
  const at::Tensor position = random_parameter({1, 8}, 2);
  const auto layer = [&](const at::Tensor& h) { return at::mm(h, weight); };
  const auto run = [&](LayerInputs* inputs) {
    const at::Tensor h = (position * 2).expand({64, 8});
    (inputs == nullptr ? layer(h) : inputs->recompute(layer, h)).square().sum().backward();
    const Tensors grads = {weight.grad().cpu(), position.grad().cpu()};
    weight.mutable_grad() = at::Tensor();
    position.mutable_grad() = at::Tensor();
    return grads;
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
  EXPECT_EQ(swapped.inputs.stats().bytes_out, 8U * 4);
}

TEST_F(LayerInputScenariosTest, SlicesTransposesAndStepsAsInputs) {
  const at::Tensor weight = random_parameter({8, 8}, 1);
  const auto layer = [&](const at::Tensor& h) { return at::mm(h, weight).sigmoid(); };
  const auto run = [&](LayerInputs* inputs) {
    const at::Tensor base = random_tensor({20, 32}, 3).requires_grad_(true) * 2;
    at::Tensor sum = at::zeros({}, base.options());
    for (const at::Tensor& h : {base.slice(1, 3, 11),
                                base.slice(0, 0, 8).slice(1, 0, 9).t().slice(1, 0, 8),
                                base.slice(1, 0, 32, 4),
                                base.as_strided({12, 8}, {4, 1}, 5)}) {
      sum = sum + (inputs == nullptr ? layer(h) : inputs->recompute(layer, h)).sum();
    }
    sum.backward();
    const at::Tensor grad = weight.grad().cpu();
    weight.mutable_grad() = at::Tensor();
    return grad;
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(LayerInputScenariosTest, FrozenLayersAndAdapters) {
  const auto run = [](LayerInputs* inputs) {
    TinyModel model;
    for (size_t i = 1; i + 2 < model.parameters().size(); ++i) {
      model.parameters()[i].requires_grad_(false);
    }
    model.forward(inputs, model.batch(0)).backward();
    return grads_of(model);
  };
  SwappedLayers swapped(six_layers());
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(LayerInputScenariosTest, AFrozenEmbeddingStillTrainsTheLayers) {
  const auto run = [](LayerInputs* inputs) {
    TinyModel model;
    model.parameters().front().requires_grad_(false);
    model.forward(inputs, model.batch(0)).backward();
    return grads_of(model);
  };
  SwappedLayers swapped(six_layers());
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(LayerInputScenariosTest, InputsOffTheDevicePassThrough) {
  SwappedLayers swapped;
  const at::Tensor weight = at::ones({4, 4}).requires_grad_(true);
  const at::Tensor h = at::ones({4, 4}).requires_grad_(true) * 2;
  swapped.inputs.recompute([&](const at::Tensor& in) { return at::mm(in, weight); }, h)
      .sum()
      .backward();
  EXPECT_TRUE(at::equal(weight.grad(), at::full({4, 4}, 8.0)));
  EXPECT_EQ(swapped.inputs.stats().num_refused, 1);
}

TEST_F(LayerInputScenariosTest, ChangingSequenceLengthsPinNothingOnceTheLongestWasSeen) {
  SwappedLayers swapped(six_layers());
  TinyModel model;
  size_t pinned = 0;
  for (const int64_t length : {200, 13, 150, 77, 200, 1, 199}) {
    const at::Tensor x = random_tensor({length, 29}, 5);
    model.forward(&swapped.inputs, x).backward();
    if (pinned == 0) {
      pinned = swapped.context->host().stats().num_pinned_allocations;
    }
  }
  EXPECT_EQ(swapped.context->host().stats().num_pinned_allocations, pinned);
}

TEST_F(LayerInputScenariosTest, TwoHundredStepsHoldStreamsAndReservedMemoryConstant) {
  SwappedLayers swapped(six_layers());
  testing::TrainOptions train;
  train.model = {.num_layers = 6, .batch = 5, .width = 5};
  train.steps = 2;
  testing::train(train, &swapped.inputs);
  const int64_t streams = sim().counters(0).num_streams;
  const size_t reserved = sim().memory_stats(0).reserved_bytes;
  train.steps = 200;
  testing::train(train, &swapped.inputs);
  EXPECT_EQ(sim().counters(0).num_streams, streams);
  EXPECT_EQ(sim().memory_stats(0).reserved_bytes, reserved);
}

TEST_F(LayerInputScenariosTest, TheUserKeepsAViewOfTheInputAlive) {
  TinyModel model;
  SwappedLayers swapped(six_layers());
  at::Tensor h = model.embed(model.batch(0));
  const at::Tensor view = h.detach().slice(0, 1, 3);
  const at::Tensor expected = view.clone();
  for (int64_t i = 0; i < 6; ++i) {
    h = swapped.inputs.recompute([&, i](const at::Tensor& in) { return model.run_layer(i, in); },
                                 h);
  }
  EXPECT_GT(swapped.inputs.stats().bytes_not_freed, 0U);
  h.square().mean().backward();
  EXPECT_TRUE(same_bits(view, expected));
  EXPECT_TRUE(same_bits(grads_of(model), expected_grads(1)));
}

}  // namespace
}  // namespace swapline
