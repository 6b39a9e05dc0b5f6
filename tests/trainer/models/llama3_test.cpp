// Shapes and sizes of each flavor, and the layers against the same arithmetic written differently.
#include "trainer/models/llama3.h"

#include "trainer/device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

Llama3Shape tiny_shape() {
  Llama3Shape shape;
  shape.dim = 32;
  shape.num_layers = 2;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.ffn_dim = 48;
  shape.vocab_size = 64;
  return shape;
}

class Llama3Test : public testing::Test {
 protected:
  Devices cpu_ = make_torch_device("cpu");
  ParameterFactory parameters_{at::kFloat, 42};

  Llama3 make(const Llama3Shape& shape, int64_t seq_len, ParameterFactory& parameters) {
    return {shape, seq_len, Placement::all_on(*cpu_.front(), shape.num_layers), parameters};
  }

  at::Tensor parameter(const std::string& name) const {
    for (const NamedParameter& parameter : parameters_.parameters()) {
      if (parameter.name == name) {
        return parameter.tensor.detach();
      }
    }
    ADD_FAILURE() << "no parameter " << name;
    return {};
  }
};

int64_t count(const std::vector<NamedParameter>& parameters) {
  int64_t total = 0;
  for (const NamedParameter& parameter : parameters) {
    total += parameter.tensor.numel();
  }
  return total;
}

at::Tensor run(const Llama3& model, at::Tensor hidden_states) {
  for (const LayerPtr& layer : model.layers()) {
    hidden_states = layer->forward(hidden_states, PartRunner());
  }
  return hidden_states;
}

TEST(Llama3Shapes, HaveThePublishedNumbersOfParameters) {
  EXPECT_EQ(llama3_shape("debugmodel").num_parameters(), 5'246'208);
  EXPECT_EQ(llama3_shape("1B").num_parameters(), 1'235'814'400);
  EXPECT_EQ(llama3_shape("8B").num_parameters(), 8'030'261'248);
  EXPECT_EQ(llama3_shape("70B").num_parameters(), 70'553'706'496);
  EXPECT_EQ(llama3_shape("405B").num_parameters(), 405'853'388'800);
}

TEST(Llama3Shapes, UnknownFlavorNamesThoseThereAre) {
  try {
    llama3_shape("9B");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("405B"), std::string::npos);
  }
}

TEST(Llama3Shapes, FlopsCountProductsAndAttention) {
  const Llama3Shape shape = llama3_shape("debugmodel");
  const double products = 6.0 * (5'246'208 - 256 * 256);
  EXPECT_EQ(shape.flops_per_token(256), products + 12.0 * 6 * 256 * 256);
}

TEST_F(Llama3Test, ModelHasTheParametersOfItsShape) {
  const Llama3 model = make(tiny_shape(), 16, parameters_);
  EXPECT_EQ(count(parameters_.parameters()), tiny_shape().num_parameters());
  for (const NamedParameter& parameter : parameters_.parameters()) {
    EXPECT_TRUE(parameter.tensor.is_leaf() && parameter.tensor.requires_grad()) << parameter.name;
  }
}

TEST_F(Llama3Test, TiedHeadIsTheEmbedding) {
  Llama3Shape shape = tiny_shape();
  shape.tied_head = true;
  const Llama3 model = make(shape, 16, parameters_);
  EXPECT_EQ(count(parameters_.parameters()), shape.num_parameters());
}

TEST_F(Llama3Test, SameSeedGivesTheSameParametersAnotherSeedOthers) {
  const Llama3 model = make(tiny_shape(), 16, parameters_);
  for (const auto& [seed, is_equal] : {std::pair{42, true}, std::pair{43, false}}) {
    ParameterFactory others(at::kFloat, seed);
    const Llama3 other = make(tiny_shape(), 16, others);
    EXPECT_EQ(parameters_.parameters().front().tensor.equal(others.parameters().front().tensor),
              is_equal);
  }
}

TEST_F(Llama3Test, LossStartsNearUniformAndEveryParameterGetsAGradient) {
  const Llama3 model = make(tiny_shape(), 16, parameters_);
  const at::Tensor tokens = at::arange(32).view({2, 16}).remainder(64);
  const at::Tensor loss = model.loss(run(model, model.embed(tokens)), tokens, {});
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_NEAR(loss.item<double>(), std::log(64.0), 1.0);
  loss.backward();
  for (const NamedParameter& parameter : parameters_.parameters()) {
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    EXPECT_GT(parameter.tensor.grad().abs().sum().item<double>(), 0) << parameter.name;
  }
}

TEST_F(Llama3Test, TokensSeeNothingAfterThem) {
  const Llama3 model = make(tiny_shape(), 16, parameters_);
  at::Tensor tokens = at::arange(16).view({1, 16});
  const at::Tensor before = run(model, model.embed(tokens)).detach();
  tokens.select(1, 10).fill_(50);
  const at::Tensor after = run(model, model.embed(tokens)).detach();
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 10), after.narrow(1, 0, 10)));
  EXPECT_FALSE(at::allclose(before.narrow(1, 10, 6), after.narrow(1, 10, 6)));
}

// Rotation by complex numbers, heads one by one, softmax written out.
at::Tensor rotate_as_complex(const at::Tensor& x, double theta) {
  const int64_t half = x.size(-1) / 2;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor frequency = at::pow(theta, -at::arange(half, options) / double(half));
  const at::Tensor angle = at::outer(at::arange(x.size(0), options), frequency);
  const at::Tensor turned = at::complex(x.narrow(-1, 0, half), x.narrow(-1, half, half)) *
                            at::polar(at::ones_like(angle), angle);
  return at::cat({at::real(turned), at::imag(turned)}, -1);
}

TEST_F(Llama3Test, LayerFollowsItsFormula) {
  const Llama3Shape shape = tiny_shape();
  const Llama3 model = make(shape, 12, parameters_);
  const auto weight = [&](const std::string& name) {
    return parameter("layers.0." + name + ".weight").to(at::kDouble);
  };
  const at::Tensor input = at::randn({1, 12, 32});
  const at::Tensor x = input[0].to(at::kDouble);
  const auto norm = [&](const at::Tensor& h) {
    return h / (h.pow(2).mean(-1, true) + shape.norm_eps).sqrt();
  };
  const at::Tensor q = norm(x).matmul(weight("attention.wq").t());
  const at::Tensor k = norm(x).matmul(weight("attention.wk").t());
  const at::Tensor v = norm(x).matmul(weight("attention.wv").t());
  const at::Tensor mask = at::full({12, 12}, -INFINITY, at::kDouble).triu(1);
  std::vector<at::Tensor> heads;
  for (int64_t head = 0; head < 4; ++head) {
    const int64_t kv_head = head / 2;
    const at::Tensor scores =
        rotate_as_complex(q.narrow(1, head * 8, 8), shape.rope_theta)
            .matmul(rotate_as_complex(k.narrow(1, kv_head * 8, 8), shape.rope_theta).t()) /
        std::sqrt(8.0);
    heads.push_back(at::softmax(scores + mask, -1).matmul(v.narrow(1, kv_head * 8, 8)));
  }
  const at::Tensor h = x + at::cat(heads, -1).matmul(weight("attention.wo").t());
  const at::Tensor gate = norm(h).matmul(weight("feed_forward.w1").t());
  const at::Tensor up = norm(h).matmul(weight("feed_forward.w3").t());
  const at::Tensor expected =
      h + (gate * at::sigmoid(gate) * up).matmul(weight("feed_forward.w2").t());
  const at::Tensor output =
      model.layers().front()->forward(input, PartRunner())[0].detach().to(at::kDouble);
  EXPECT_LT((output - expected).abs().max().item<double>(), 1e-5);
}

}  // namespace
}  // namespace swapline::trainer
