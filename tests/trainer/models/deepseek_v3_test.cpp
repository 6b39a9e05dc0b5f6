// Shapes and sizes of each flavor, and the layers and the loss against the same arithmetic written
// differently.
#include "tests/trainer/models/tiny_deepseek.h"

#include <cmath>
#include <map>

namespace swapline::trainer {
namespace {

constexpr int64_t kSeqLen = 12;

class DeepseekV3Test : public testing::Test {
 protected:
  TinyDeepseek make(const DeepseekV3Shape& shape) {
    return TinyDeepseek(*cpu_, shape, {.seq_len = kSeqLen});
  }
  static at::Tensor some_tokens() { return (at::arange(24) * 7 + 3).remainder(64).view({2, 12}); }
  static at::Tensor some_targets() { return (at::arange(24) * 5 + 1).remainder(64).view({2, 12}); }

  std::unique_ptr<Device> cpu_ = cpu_device();
};

TEST_F(DeepseekV3Test, MakeModelTakesNumberOfLayersAndMtpModules) {
  Config config = config_of("debugmodel");
  config.model.num_layers = 2;
  config.training.num_mtp_modules = 1;
  config.training.seq_len = 16;
  ParameterFactory factory(at::kFloat, 1);
  const auto model = make_model(config, Placement::all_on(*cpu_, 2), {}, factory);
  EXPECT_EQ(model->layers().size(), 2U);
  EXPECT_EQ(model->expert_loads().size(), 2U);  // of one layer, and of the MTP module
  int64_t total = 0;
  for (const NamedParameter& parameter : factory.parameters()) {
    total += parameter.tensor.numel();
  }
  EXPECT_EQ(total, model_figures(config).num_parameters);
}

TEST_F(DeepseekV3Test, ModelHasTheParametersOfItsShape) {
  for (const int64_t q_rank : {0, 24}) {
    DeepseekV3Shape shape = tiny_deepseek();
    shape.attention.q_rank = q_rank;
    shape.num_mtp_modules = 2;
    const TinyDeepseek tiny = make(shape);
    EXPECT_EQ(tiny.num_parameters(), shape.num_parameters());
  }
}

TEST_F(DeepseekV3Test, MtpModulesThatHaveNoTargetAreRefused) {
  DeepseekV3Shape shape = tiny_deepseek();
  shape.num_mtp_modules = kSeqLen;
  EXPECT_NE(usage_error([&] { make(shape); }).find("less than --training.seq-len, 12"),
            std::string::npos);
}

TEST_F(DeepseekV3Test, EveryParameterGetsAGradient) {
  DeepseekV3Shape shape = tiny_deepseek();
  shape.num_mtp_modules = 2;
  const TinyDeepseek tiny = make(shape);
  const at::Tensor loss = tiny.loss(some_tokens(), some_targets());
  EXPECT_EQ(loss.dim(), 0);
  EXPECT_NEAR(loss.item<double>(), 1.3 * std::log(64.0), 1.5);
  loss.backward();
  for (const NamedParameter& parameter : tiny.factory.parameters()) {
    ASSERT_TRUE(parameter.tensor.grad().defined()) << parameter.name;
    const at::Tensor sizes = parameter.tensor.grad().abs();
    // Of experts, every one of them.
    const at::Tensor least = parameter.is_sharded ? sizes.sum({1, 2}).min() : sizes.sum();
    EXPECT_GT(least.item<double>(), 0) << parameter.name;
  }
}

TEST_F(DeepseekV3Test, TokensSeeNothingAfterThem) {
  const TinyDeepseek tiny = make(tiny_deepseek());
  at::Tensor tokens = some_tokens();
  const at::Tensor before = tiny.hidden_states(tokens).detach();
  tokens.select(1, 7).fill_(50);
  const at::Tensor after = tiny.hidden_states(tokens).detach();
  EXPECT_TRUE(at::allclose(before.narrow(1, 0, 7), after.narrow(1, 0, 7)));
  EXPECT_FALSE(at::allclose(before.narrow(1, 7, 5), after.narrow(1, 7, 5)));
}

at::Tensor normed(const at::Tensor& x, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt();
}

// Rotation by complex numbers. [T, E]
at::Tensor rotate_as_complex(const at::Tensor& x, double theta) {
  const int64_t half = x.size(-1) / 2;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor frequency = at::pow(theta, -at::arange(half, options) / double(half));
  const at::Tensor angle = at::outer(at::arange(x.size(0), options), frequency);
  const at::Tensor turned = at::complex(x.narrow(-1, 0, half), x.narrow(-1, half, half)) *
                            at::polar(at::ones_like(angle), angle);
  return at::cat({at::real(turned), at::imag(turned)}, -1);
}

// The dense layer in double precision, one head at a time, softmax written out.
TEST_F(DeepseekV3Test, DenseLayerFollowsItsFormula) {
  for (const int64_t q_rank : {0, 24}) {
    DeepseekV3Shape shape = tiny_deepseek();
    shape.attention.q_rank = q_rank;
    const TinyDeepseek tiny = make(shape);
    const auto weight = [&](const std::string& name) {
      return tiny.in_double("layers.0." + name + ".weight");
    };
    const at::Tensor input = at::randn({1, kSeqLen, 32});
    const at::Tensor x = input[0].to(at::kDouble);
    const at::Tensor n = normed(x, shape.norm_eps);
    const at::Tensor queries = q_rank == 0
                                   ? n.matmul(weight("attention.wq").t())
                                   : normed(n.matmul(weight("attention.wq_a").t()), shape.norm_eps)
                                         .matmul(weight("attention.wq_b").t());
    const at::Tensor compressed = n.matmul(weight("attention.wkv_a").t());
    const at::Tensor shared_key =
        rotate_as_complex(compressed.narrow(1, 16, 4).contiguous(), shape.rope_theta);
    const at::Tensor kv =
        normed(compressed.narrow(1, 0, 16), shape.norm_eps).matmul(weight("attention.wkv_b").t());
    const at::Tensor mask = at::full({kSeqLen, kSeqLen}, -INFINITY, at::kDouble).triu(1);
    std::vector<at::Tensor> heads;
    for (int64_t head = 0; head < 2; ++head) {
      const at::Tensor q = queries.narrow(1, head * 12, 12);
      const at::Tensor k = kv.narrow(1, head * 14, 8);
      const at::Tensor v = kv.narrow(1, head * 14 + 8, 6);
      const at::Tensor turned = rotate_as_complex(q.narrow(1, 8, 4).contiguous(), shape.rope_theta);
      const at::Tensor scores =
          (q.narrow(1, 0, 8).matmul(k.t()) + turned.matmul(shared_key.t())) / std::sqrt(12.0);
      heads.push_back(at::softmax(scores + mask, -1).matmul(v));
    }
    const at::Tensor h = x + at::cat(heads, -1).matmul(weight("attention.wo").t());
    const at::Tensor m = normed(h, shape.norm_eps);
    const at::Tensor gate = m.matmul(weight("feed_forward.w1").t());
    const at::Tensor up = m.matmul(weight("feed_forward.w3").t());
    const at::Tensor expected =
        h + (gate * at::sigmoid(gate) * up).matmul(weight("feed_forward.w2").t());
    const at::Tensor output = tiny.model.layers().front()->forward(input, PartRunner())[0];
    EXPECT_LT((output.detach() - expected).abs().max().item<double>(), 1e-5);
  }
}

// Parts with the names of those that ran, in a runner that runs each of them twice.
struct TwiceRunner : PartRunner {
  at::Tensor run(LayerPart part,
                 const PartFunction& function,
                 const std::vector<at::Tensor>& inputs) const override {
    ++counts[part];
    const at::Tensor first = function(inputs);
    EXPECT_TRUE(first.equal(function(inputs)));
    return first;
  }
  mutable std::map<LayerPart, int> counts;
};

TEST_F(DeepseekV3Test, PartsGiveTheSameBitsWhenRunAgain) {
  const TinyDeepseek tiny = make(tiny_deepseek());
  const at::Tensor input = at::randn({2, kSeqLen, 32});
  for (const LayerPtr& layer : tiny.model.layers()) {
    const TwiceRunner runner;
    EXPECT_TRUE(layer->forward(input, runner).equal(layer->forward(input, PartRunner())));
    EXPECT_EQ(runner.counts[LayerPart::kNorm], 4);
    EXPECT_EQ(runner.counts[LayerPart::kAttentionCore], 1);
    EXPECT_EQ(runner.counts[LayerPart::kFeedForward], 1) << "shared and routed experts are one";
  }
}

// Minus the logarithms of the targets' probabilities, summed position by position.
double summed_loss(const at::Tensor& h,
                   const at::Tensor& head,
                   const std::vector<int64_t>& targets) {
  double sum = 0;
  for (size_t t = 0; t < targets.size(); ++t) {
    const at::Tensor logits = head.matmul(h[static_cast<int64_t>(t)]);
    sum += (logits.exp().sum().log() - logits[targets[t]]).item<double>();
  }
  return sum;
}

TEST_F(DeepseekV3Test, LossIsTheModelsAndTheModules) {
  DeepseekV3Shape shape = tiny_deepseek();
  shape.num_mtp_modules = 2;
  const TinyDeepseek tiny = make(shape);
  const at::Tensor targets = some_targets();
  at::Tensor h = at::randn({2, kSeqLen, 32});
  std::vector<LayerPtr> modules;
  const double found = tiny.model
                           .loss(h,
                                 targets,
                                 [&](const LayerPtr& layer, at::Tensor x) {
                                   modules.push_back(layer);
                                   return TinyDeepseek::run_layer(layer, std::move(x));
                                 })
                           .item<double>();
  ASSERT_EQ(modules.size(), 2U);
  const at::Tensor head = tiny.in_double("output.weight");
  const auto mean_loss = [&](const at::Tensor& states, int64_t moved) {
    double sum = 0;
    for (int64_t sequence = 0; sequence < 2; ++sequence) {
      std::vector<int64_t> of_sequence;
      for (int64_t t = moved; t < kSeqLen; ++t) {
        of_sequence.push_back(targets[sequence][t].item<int64_t>());
      }
      sum += summed_loss(
          normed(states[sequence].detach().to(at::kDouble), shape.norm_eps), head, of_sequence);
    }
    return sum / static_cast<double>(2 * (kSeqLen - moved));
  };
  double expected = mean_loss(h, 0);
  const at::Tensor table = tiny.parameter("tok_embeddings.weight");
  for (int64_t k = 1; k <= 2; ++k) {
    at::Tensor embedded = at::zeros({2, kSeqLen, 32});  // what has no token is anything
    for (int64_t t = 0; t + k - 1 < kSeqLen; ++t) {
      embedded.select(1, t).copy_(table.index_select(0, targets.select(1, t + k - 1)).detach());
    }
    const at::Tensor joined = at::cat({normed(h, shape.norm_eps), normed(embedded, 1e-6)}, -1);
    const std::string prefix = "mtp." + std::to_string(k - 1) + ".";
    const at::Tensor projection = tiny.parameter(prefix + "eh_proj.weight");
    h = TinyDeepseek::run_layer(modules[k - 1], joined.matmul(projection.t())).detach();
    expected += 0.15 * mean_loss(h, k);
  }
  EXPECT_NEAR(found, expected, 1e-5);
}

TEST_F(DeepseekV3Test, EmbeddingOfMtpModulesIsTiedWhereTheHeadIsElsewhere) {
  const std::unique_ptr<Device> other = cpu_device();
  DeepseekV3Shape shape = tiny_deepseek();
  Placement placement = Placement::all_on(*cpu_, shape.num_layers);
  placement.head = other.get();
  ParameterFactory without_factory(at::kFloat, 42);
  EXPECT_TRUE(DeepseekV3(shape, {.seq_len = kSeqLen}, placement, without_factory)
                  .tied_parameters()
                  .empty());
  shape.num_mtp_modules = 1;
  ParameterFactory factory(at::kFloat, 42);
  const DeepseekV3 model(shape, {.seq_len = kSeqLen}, placement, factory);
  ASSERT_EQ(model.tied_parameters().size(), 1U);
  const auto& [at_embedding, at_head] = model.tied_parameters().front();
  EXPECT_FALSE(at_embedding.tensor.is_same(at_head.tensor));
  EXPECT_TRUE(at_embedding.tensor.equal(at_head.tensor));
  const TinyDeepseek on_one = make(shape);
  const at::Tensor h = at::randn({2, kSeqLen, 32});
  EXPECT_TRUE(model.loss(h, some_targets(), &TinyDeepseek::run_layer)
                  .equal(on_one.model.loss(h, some_targets(), &TinyDeepseek::run_layer)));
}

}  // namespace
}  // namespace swapline::trainer
