// recompute as an autograd function: the same bits as ordinary autograd, whatever a layer takes and
// returns, and clear refusals.
#include "swapline/layer_input/layer_inputs.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::random_parameter;
using testing::random_tensor;
using testing::same_bits;
using testing::SwappedLayers;
using testing::TinyModel;

using Tensors = std::vector<at::Tensor>;

class RecomputeTest : public testing::SimTest {
 protected:
  static at::Tensor input() { return random_tensor({8, 8}, 5).requires_grad_(true) * 1.5; }
};

TEST_F(RecomputeTest, GradientsEqualThoseOfOrdinaryAutograd) {
  SwappedLayers swapped;
  const testing::TrainOptions options;
  EXPECT_TRUE(
      same_bits(testing::train(options, nullptr), testing::train(options, &swapped.inputs)));
  EXPECT_GT(swapped.inputs.stats().num_swapped_out, 0);
}

TEST_F(RecomputeTest, OtherTensorsMayNeedGradientsBeUndefinedOrIntegers) {
  const at::Tensor weight = random_parameter({8, 8}, 1);
  const at::Tensor bias = random_parameter({8}, 2);
  const auto mask = (random_tensor({8, 8}, 3) > 0);
  const auto layer = [&](const at::Tensor& h, const Tensors& others) {
    EXPECT_FALSE(others[1].defined());
    return Tensors{at::where(others[3], at::mm(h, others[0]) + others[2], h)};
  };
  const auto run = [&](LayerInputs* inputs) {
    const at::Tensor h = input();
    const at::Tensor scaled_bias = bias * 2;
    const Tensors others = {weight, at::Tensor(), scaled_bias, mask};
    const Tensors out = inputs == nullptr ? layer(h, others) : inputs->recompute(layer, h, others);
    out.front().sum().backward();
    const Tensors grads = {weight.grad().cpu(), bias.grad().cpu()};
    weight.mutable_grad() = at::Tensor();
    bias.mutable_grad() = at::Tensor();
    return grads;
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(RecomputeTest, ALayerMayReturnSeveralTensorsOfWhichSomeAreUnused) {
  const at::Tensor weight = random_parameter({8, 8}, 1);
  const auto layer = [&](const at::Tensor& h, const Tensors&) {
    const at::Tensor product = at::mm(h, weight);
    return Tensors{product, product.argmax(1), product.sum(), product.tanh()};
  };
  const auto run = [&](LayerInputs* inputs) {
    const Tensors out = inputs == nullptr ? layer(input(), {}) : inputs->recompute(layer, input());
    EXPECT_FALSE(out[1].requires_grad());
    (out[0].sum() + out[3].square().sum()).backward();
    const at::Tensor grad = weight.grad().cpu();
    weight.mutable_grad() = at::Tensor();
    return grad;
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(RecomputeTest, ALayerMayReturnItsInputOrAViewOfIt) {
  const at::Tensor weight = random_parameter({8, 8}, 1);
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> layers = {
      [](const at::Tensor& h) { return h; },
      [](const at::Tensor& h) { return h.t(); },
      [&](const at::Tensor& h) { return at::mm(h, weight); },
      [](const at::Tensor& h) { return h.slice(0, 1, 5); },
      [](const at::Tensor& h) { return h.view({4, 8}); },
      [&](const at::Tensor& h) { return at::mm(h, weight); },
  };
  const auto run = [&](LayerInputs* inputs) {
    at::Tensor h = input();
    for (const auto& layer : layers) {
      h = inputs == nullptr ? layer(h) : inputs->recompute(layer, h);
    }
    h.square().sum().backward();
    const at::Tensor grad = weight.grad().cpu();
    weight.mutable_grad() = at::Tensor();
    return grad;
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(RecomputeTest, GradientsReachALeafInput) {
  SwappedLayers swapped;
  const at::Tensor leaf = random_parameter({8, 8}, 1);
  swapped.inputs.recompute([](const at::Tensor& h) { return h.square(); }, leaf).sum().backward();
  EXPECT_TRUE(same_bits(leaf.grad(), leaf.detach() * 2));
  EXPECT_EQ(swapped.inputs.stats().num_refused, 1);
}

TEST_F(RecomputeTest, DropoutDrawsTheSameNumbersAgain) {
  testing::TrainOptions options;
  options.model.dropout = 0.3;
  at::manual_seed(11);
  const auto expected = testing::train(options, nullptr);
  SwappedLayers swapped;
  at::manual_seed(11);
  EXPECT_TRUE(same_bits(expected, testing::train(options, &swapped.inputs)));
}

TEST_F(RecomputeTest, RandomNumbersAfterwardsAreThoseOfOrdinaryAutograd) {
  const auto run = [](LayerInputs* inputs) {
    at::manual_seed(3);
    testing::TrainOptions options;
    options.model.dropout = 0.5;
    testing::train(options, inputs);
    return Tensors{at::rand({4}), at::rand({4}, at::TensorOptions().device(device())).cpu()};
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
}

TEST_F(RecomputeTest, AutocastIsAsItWasInForward) {
  const at::Tensor weight = random_parameter({8, 8}, 1);
  std::vector<at::ScalarType> seen;
  const auto layer = [&](const at::Tensor& h) {
    const at::Tensor product = at::mm(h, weight);
    seen.push_back(product.scalar_type());
    return product + at::mm(h * 2, weight);
  };
  const auto run = [&](LayerInputs* inputs) {
    const auto type = device().type();
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::increment_nesting();
    const at::Tensor h = input();
    at::Tensor out = inputs == nullptr ? layer(h) : inputs->recompute(layer, h);
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(type, false);
    out.to(at::kFloat).sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(type));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    const at::Tensor grad = weight.grad().cpu();
    weight.mutable_grad() = at::Tensor();
    return grad;
  };
  SwappedLayers swapped;
  EXPECT_TRUE(same_bits(run(nullptr), run(&swapped.inputs)));
  EXPECT_EQ(seen, (std::vector<at::ScalarType>(3, at::kBFloat16)));
}

TEST_F(RecomputeTest, WithoutABackwardToComeNothingIsSwapped) {
  SwappedLayers swapped;
  TinyModel model;
  {
    const c10::NoGradGuard no_grad;
    model.forward(&swapped.inputs, model.batch(0));
  }
  {
    const c10::InferenceMode inference;
    model.forward(&swapped.inputs, model.batch(0));
  }
  swapped.inputs.recompute([](const at::Tensor& h) { return h * 2; }, model.batch(0));
  const LayerInputStats stats = swapped.inputs.stats();
  EXPECT_EQ(stats.num_swapped_out + stats.num_kept_on_device + stats.num_refused, 0);
  EXPECT_EQ(swapped.context->host().stats().num_pinned_allocations, 0U);
}

TEST_F(RecomputeTest, ParametersBehindAnInputWithoutGradStillGetGradients) {
  SwappedLayers swapped;
  const at::Tensor weight = random_parameter({8, 8}, 1);
  const at::Tensor x = random_tensor({8, 8}, 2);
  swapped.inputs.recompute([&](const at::Tensor& h) { return at::mm(h, weight); }, x)
      .sum()
      .backward();
  EXPECT_TRUE(weight.grad().defined());
}

TEST_F(RecomputeTest, BackwardTwiceWithRetainedGraphIsRight) {
  for (const bool enabled : {true, false}) {
    LayerInputOptions options;
    options.enabled = enabled;
    SwappedLayers swapped(options);
    TinyModel plain;
    TinyModel model;
    const at::Tensor expected = plain.forward(nullptr, plain.batch(0));
    expected.backward({}, /*retain_graph=*/true);
    expected.backward({}, /*retain_graph=*/true);
    expected.backward();
    const at::Tensor loss = model.forward(&swapped.inputs, model.batch(0));
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_TRUE(same_bits(plain.grads_on_cpu(), model.grads_on_cpu()));
    EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
    EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
  }
}

TEST_F(RecomputeTest, BackwardTwiceWithoutRetainedGraphIsRefused) {
  SwappedLayers swapped;
  const at::Tensor h = input();
  const at::Tensor out = swapped.inputs.recompute([](const at::Tensor& x) { return x.exp(); }, h);
  const at::Tensor grad = at::ones_like(out);
  out.backward(grad, /*retain_graph=*/false);
  EXPECT_THAT(message_of([&] { out.backward(grad); }), HasSubstr("retain_graph=True"));
}

TEST_F(RecomputeTest, HostMemoryIsFreeAfterBackwardWhileTheLossLives) {
  SwappedLayers swapped;
  TinyModel model;
  const at::Tensor loss = model.forward(&swapped.inputs, model.batch(0));
  loss.backward();
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
}

TEST_F(RecomputeTest, DoubleBackwardIsRefused) {
  SwappedLayers swapped;
  const at::Tensor out =
      swapped.inputs.recompute([](const at::Tensor& h) { return h.exp(); }, input());
  EXPECT_THAT(message_of([&] { out.sum().backward({}, std::nullopt, /*create_graph=*/true); }),
              HasSubstr("double backward (create_graph=True) is not supported"));
}

TEST_F(RecomputeTest, PartialBackwardIsRefused) {
  SwappedLayers swapped;
  const at::Tensor h = input();
  const at::Tensor out = swapped.inputs.recompute([](const at::Tensor& x) { return x.exp(); }, h);
  EXPECT_THAT(message_of([&] { torch::autograd::grad({out.sum()}, {h}); }),
              HasSubstr("torch.autograd.grad() and backward(inputs=...) are not supported"));
}

TEST_F(RecomputeTest, AnInputWrittenInPlaceAfterwardsIsAnError) {
  SwappedLayers swapped;
  const at::Tensor h = input();
  const at::Tensor out = swapped.inputs.recompute([](const at::Tensor& x) { return x.exp(); }, h);
  sim().synchronize_device(0);
  h.detach().add_(1);
  EXPECT_THAT(message_of([&] { out.sum().backward(); }), HasSubstr("in-place operation"));
}

TEST_F(RecomputeTest, AnotherTensorWrittenInPlaceAfterwardsIsAnError) {
  SwappedLayers swapped;
  const at::Tensor scale = random_tensor({8, 8}, 1);
  const at::Tensor out = swapped.inputs.recompute(
      [](const at::Tensor& h, const Tensors& others) { return Tensors{h * others[0]}; },
      input(),
      {scale})[0];
  scale.add_(1);
  EXPECT_THAT(message_of([&] { out.sum().backward(); }), HasSubstr("argument 1 was modified"));
}

TEST_F(RecomputeTest, ALayerThatChangesItsNumberOfOutputsIsAnError) {
  SwappedLayers swapped;
  int calls = 0;
  const auto layer = [&calls](const at::Tensor& h, const Tensors&) {
    return ++calls == 1 ? Tensors{h * 2} : Tensors{h * 2, h};
  };
  const at::Tensor out = swapped.inputs.recompute(layer, input()).front();
  EXPECT_THAT(message_of([&] { out.sum().backward(); }),
              HasSubstr("the layer returned 2 tensors, and 1 in forward"));
}

TEST_F(RecomputeTest, LayersInsideLayersAreRecomputedToo) {
  SwappedLayers swapped;
  TinyModel plain;
  TinyModel model;
  plain.forward(nullptr, plain.batch(0)).backward();
  at::Tensor h = model.embed(model.batch(0));
  for (int64_t i = 0; i < 6; i += 2) {
    h = swapped.inputs.recompute(
        [&, i](const at::Tensor& in) {
          at::Tensor inner = in;
          for (int64_t k = i; k < i + 2; ++k) {
            inner = swapped.inputs.recompute(
                [&, k](const at::Tensor& x) { return model.run_layer(k, x); }, inner);
          }
          return inner;
        },
        h);
  }
  h.square().mean().backward();
  EXPECT_TRUE(same_bits(plain.grads_on_cpu(), model.grads_on_cpu()));
  EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
}

TEST_F(RecomputeTest, TheGraphMayOutliveTheLayerInputs) {
  TinyModel model;
  TinyModel plain;
  at::Tensor loss;
  {
    SwappedLayers swapped;
    loss = model.forward(&swapped.inputs, model.batch(0));
  }
  loss.backward();
  plain.forward(nullptr, plain.batch(0)).backward();
  EXPECT_TRUE(same_bits(plain.grads_on_cpu(), model.grads_on_cpu()));
}

}  // namespace
}  // namespace swapline
