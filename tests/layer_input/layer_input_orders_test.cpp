// Passes and layers in every order: evals between, micro-batches, models, layers called twice or
// not at all. What people ran into with other systems, each tried on layer-input swap.
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

class LayerInputOrdersTest : public testing::LateLayersTest {};

TEST_F(LayerInputOrdersTest, EvalForwardsInEveryGapChangeNothing) {
  TinyModel model;
  SwappedLayers swapped(six_layers());
  const auto eval = [&] {
    const c10::NoGradGuard no_grad;
    model.forward(&swapped.inputs, model.batch(9));
  };
  eval();
  const at::Tensor first = model.forward(&swapped.inputs, model.batch(0));
  eval();
  eval();
  first.backward();
  eval();
  const at::Tensor second = model.forward(&swapped.inputs, model.batch(1));
  second.backward();
  eval();
  EXPECT_TRUE(same_bits(grads_of(model), expected_grads(2)));
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
}

TEST_F(LayerInputOrdersTest, AForwardThatNoBackwardFollowsLeavesNothing) {
  TinyModel model;
  SwappedLayers swapped(six_layers());
  for (int i = 0; i < 3; ++i) {
    model.forward(&swapped.inputs, model.batch(i));
  }
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
  EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
  model.forward(&swapped.inputs, model.batch(0)).backward();
  EXPECT_TRUE(same_bits(grads_of(model), expected_grads(1)));
}

TEST_F(LayerInputOrdersTest, BackwardsOfMicrobatchesInAnyOrder) {
  for (const std::vector<int64_t>& order : {std::vector<int64_t>{2, 1, 0}, {1, 0, 2}, {0, 1, 2}}) {
    TinyModel plain;
    TinyModel model;
    SwappedLayers swapped(six_layers());
    Tensors plain_losses;
    Tensors losses;
    for (int64_t i = 0; i < 3; ++i) {
      plain_losses.push_back(plain.forward(nullptr, plain.batch(i)));
      losses.push_back(model.forward(&swapped.inputs, model.batch(i)));
    }
    for (const int64_t i : order) {
      plain_losses[i].backward();
      losses[i].backward();
    }
    EXPECT_TRUE(same_bits(grads_of(plain), grads_of(model)));
  }
}

TEST_F(LayerInputOrdersTest, ForwardsAndBackwardsInterleavedAsInOneForwardOneBackward) {
  TinyModel plain;
  TinyModel model;
  SwappedLayers swapped(six_layers());
  std::deque<at::Tensor> in_flight;
  for (int64_t i = 0; i < 6; ++i) {
    plain.forward(nullptr, plain.batch(i)).backward();
    in_flight.push_back(model.forward(&swapped.inputs, model.batch(i)));
    if (in_flight.size() == 3) {
      in_flight.front().backward();
      in_flight.pop_front();
    }
  }
  for (const at::Tensor& loss : in_flight) {
    loss.backward();
  }
  EXPECT_TRUE(same_bits(grads_of(plain), grads_of(model)));
}

TEST_F(LayerInputOrdersTest, TwoModelsTrainedInTurnOneDeletedInBetween) {
  const auto context = std::make_shared<SwapContext>(device());
  LayerInputs first_inputs(context, six_layers());
  TinyModel first;
  {
    LayerInputs second_inputs(context, six_layers());
    TinyModel second({.seed = 77});
    TinyModel second_plain({.seed = 77});
    const at::Tensor a = first.forward(&first_inputs, first.batch(0));
    const at::Tensor b = second.forward(&second_inputs, second.batch(0));
    a.backward();
    b.backward();
    second_plain.forward(nullptr, second_plain.batch(0)).backward();
    EXPECT_TRUE(same_bits(grads_of(second), grads_of(second_plain)));
    // Deleted with a forward under way.
    const at::Tensor unused = second.forward(&second_inputs, second.batch(1));
  }
  first.forward(&first_inputs, first.batch(1)).backward();
  EXPECT_TRUE(same_bits(grads_of(first), expected_grads(2)));
  EXPECT_EQ(context->host().stats().requested_bytes, 0U);
}

TEST_F(LayerInputOrdersTest, ALayerCalledTwiceAsInMultiTokenPrediction) {
  const auto run = [](LayerInputs* inputs) {
    TinyModel model;
    at::Tensor h = model.embed(model.batch(0));
    for (const int64_t i : {0, 1, 1, 2, 0}) {
      const auto layer = [&model, i](const at::Tensor& in) { return model.run_layer(i, in); };
      h = inputs == nullptr ? layer(h) : inputs->recompute(layer, h);
    }
    h.square().mean().backward();
    return grads_of(model);
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(LayerInputOrdersTest, LayersSkippedAtRandom) {
  const auto run = [](bool enabled) {
    LayerInputOptions options = six_layers();
    options.enabled = enabled;
    options.max_swapping_out = 1;
    SwappedLayers swapped(options);
    TinyModel model;
    uint32_t dice = 12345;
    for (int64_t step = 0; step < 8; ++step) {
      at::Tensor h = model.embed(model.batch(step));
      for (int64_t i = 0; i < 6; ++i) {
        dice = dice * 1664525 + 1013904223;
        if (dice >> 30 == 0) {
          continue;
        }
        h = swapped.inputs.recompute(
            [&model, i](const at::Tensor& in) { return model.run_layer(i, in); }, h);
      }
      h.square().mean().backward();
      EXPECT_LE(swapped.inputs.stats().peak_resident_inputs, enabled ? 1 : 5);
    }
    return grads_of(model);
  };
  EXPECT_TRUE(same_bits(run(false), run(true)));
}

TEST_F(LayerInputOrdersTest, OneLayerAndTwoLayers) {
  for (const int64_t num_layers : {1, 2}) {
    testing::TrainOptions train;
    train.model.num_layers = num_layers;
    LayerInputOptions options;
    options.num_layers = num_layers;
    SwappedLayers swapped(options);
    EXPECT_TRUE(same_bits(testing::train(train, nullptr), testing::train(train, &swapped.inputs)));
    EXPECT_EQ(swapped.inputs.stats().num_swapped_out, 3 * (num_layers - 1));
  }
}

TEST_F(LayerInputOrdersTest, BlocksOfLayersAndTheFirstLayersOnly) {
  for (const auto& [block, num_recomputed] : {std::pair<int64_t, int64_t>{3, 6}, {2, 4}, {1, 2}}) {
    TinyModel model;
    SwappedLayers swapped;
    at::Tensor h = model.embed(model.batch(0));
    for (int64_t i = 0; i < num_recomputed; i += block) {
      h = swapped.inputs.recompute(
          [&model, i, block = block](const at::Tensor& in) {
            at::Tensor out = in;
            for (int64_t k = i; k < i + block; ++k) {
              out = model.run_layer(k, out);
            }
            return out;
          },
          h);
    }
    for (int64_t i = num_recomputed; i < 6; ++i) {
      h = model.run_layer(i, h);
    }
    h.square().mean().backward();
    EXPECT_TRUE(same_bits(grads_of(model), expected_grads(1)));
  }
}

TEST_F(LayerInputOrdersTest, LongStretchesBetweenLayersDoNotCostThePrefetch) {
  TinyModel model;
  SwappedLayers swapped(six_layers());
  at::Tensor h = model.embed(model.batch(0));
  for (int64_t i = 0; i < 6; ++i) {
    h = swapped.inputs.recompute(
        [&model, i](const at::Tensor& in) { return model.run_layer(i, in); }, h);
    for (int k = 0; k < 60; ++k) {
      h = h * 1.0;
    }
  }
  h.square().mean().backward();
  EXPECT_EQ(swapped.inputs.stats().num_prefetch_misses, 0);
  EXPECT_TRUE(same_bits(grads_of(model), expected_grads(1)));
}

TEST_F(LayerInputOrdersTest, TwoDevicesEachWithItsOwnContext) {
  for (const int index : {0, 1}) {
    const auto context = std::make_shared<SwapContext>(device(index));
    LayerInputs inputs(context, {});
    const at::Tensor weight = random_tensor({8, 8}, 1, device(index)).requires_grad_(true);
    at::Tensor h = random_tensor({8, 8}, 2, device(index)).requires_grad_(true) * 2;
    for (int i = 0; i < 4; ++i) {
      h = inputs.recompute([&](const at::Tensor& in) { return at::mm(in, weight); }, h);
    }
    h.sum().backward();
    EXPECT_TRUE(weight.grad().defined());
    EXPECT_EQ(inputs.stats().num_swapped_out, 4);
    EXPECT_GT(context->copies().stats().num_copies_in, 0);
  }
}

}  // namespace
}  // namespace swapline
