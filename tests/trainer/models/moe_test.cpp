// Layers with experts: against loops over tokens and experts; the balance of the experts' loads.
#include "tests/trainer/models/tiny_deepseek.h"
#include "trainer/models/moe_moves.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace swapline::trainer {
namespace {

constexpr int64_t kSeqLen = 16;
constexpr size_t kLayer = 1;  // the first one with experts

class MoeTest : public testing::Test {
 protected:
  TinyDeepseek make(const DeepseekV3Shape& shape = tiny_deepseek(),
                    ExpertShard shard = {},
                    bool force_load_balance = false) {
    return TinyDeepseek(*cpu_, shape, {kSeqLen, shard, force_load_balance});
  }
  static at::Tensor some_input(int64_t batch = 2) { return at::randn({batch, kSeqLen, 32}); }

  std::unique_ptr<Device> cpu_ = cpu_device();
};

at::Tensor normed(const at::Tensor& x, double eps) {
  return x / (x.pow(2).mean(-1, true) + eps).sqrt();
}

at::Tensor gated(const at::Tensor& x,
                 const at::Tensor& w1,
                 const at::Tensor& w2,
                 const at::Tensor& w3) {
  const at::Tensor gate = w1.matmul(x);
  return w2.matmul(gate / (1 + (-gate).exp()) * w3.matmul(x));
}

// The experts of one token: groups by the sum of their best two, then the best in those groups.
std::vector<int64_t> best_experts(const std::vector<double>& scores, const MoeShape& shape) {
  const auto sorted_by = [](std::vector<int64_t> items, const std::vector<double>& values) {
    std::stable_sort(
        items.begin(), items.end(), [&](int64_t a, int64_t b) { return values[a] > values[b]; });
    return items;
  };
  const int64_t size = shape.num_experts / shape.num_groups;
  std::vector<double> of_groups;
  std::vector<int64_t> groups(static_cast<size_t>(shape.num_groups));
  std::iota(groups.begin(), groups.end(), 0);
  for (const int64_t group : groups) {
    std::vector<double> own(scores.begin() + group * size, scores.begin() + (group + 1) * size);
    std::sort(own.rbegin(), own.rend());
    of_groups.push_back(own[0] + own[1]);
  }
  groups = sorted_by(groups, of_groups);
  groups.resize(static_cast<size_t>(shape.groups_per_token));
  std::vector<int64_t> experts;
  for (const int64_t group : groups) {
    for (int64_t i = 0; i < size; ++i) {
      experts.push_back(group * size + i);
    }
  }
  experts = sorted_by(experts, scores);
  experts.resize(static_cast<size_t>(shape.experts_per_token));
  return experts;
}

// The feed-forward half of a layer for one token's h, in double precision.
at::Tensor moe_of_token(const TinyDeepseek& tiny, const at::Tensor& h) {
  const MoeShape& shape = tiny.shape.moe;
  const auto weight = [&](const std::string& name) {
    return tiny.in_double("layers." + std::to_string(kLayer) + ".moe." + name);
  };
  const at::Tensor x = normed(h, tiny.shape.norm_eps);
  const at::Tensor logits = weight("router.gate.weight").matmul(x);
  const at::Tensor scores =
      shape.sigmoid_scores ? 1 / (1 + (-logits).exp()) : logits.exp() / logits.exp().sum();
  std::vector<double> values;
  for (int64_t expert = 0; expert < shape.num_experts; ++expert) {
    values.push_back(scores[expert].item<double>());
  }
  const std::vector<int64_t> experts = best_experts(values, shape);
  double sum = 0;
  for (const int64_t expert : experts) {
    sum += values[expert];
  }
  at::Tensor y = h + gated(x,
                           weight("shared_experts.w1.weight"),
                           weight("shared_experts.w2.weight"),
                           weight("shared_experts.w3.weight"));
  for (const int64_t expert : experts) {
    const double share = shape.route_scale * values[expert] / (shape.normalized ? sum : 1);
    y = y + share * gated(x,
                          weight("experts.w1")[expert],
                          weight("experts.w2")[expert],
                          weight("experts.w3")[expert]);
  }
  return y;
}

TEST_F(MoeTest, LayerFollowsItsFormulaTokenByToken) {
  DeepseekV3Shape like_v2 = tiny_deepseek();
  like_v2.moe.num_groups = 1;
  like_v2.moe.groups_per_token = 1;
  like_v2.moe.sigmoid_scores = false;
  like_v2.moe.normalized = false;
  like_v2.moe.route_scale = 1;
  for (const DeepseekV3Shape& shape : {tiny_deepseek(), like_v2}) {
    const TinyDeepseek tiny = make(shape);
    // Larger weights: scores differ, and the experts' part is not lost beside the rest.
    for (const NamedParameter& parameter : tiny.factory.parameters()) {
      if (parameter.name.find("moe.") != std::string::npos) {
        parameter.tensor.detach().mul_(10);
      }
    }
    // A layer whose shared experts give nothing: what it adds its experts to is the attention's h.
    const TinyDeepseek bare = make(shape);
    bare.parameter("layers.1.moe.shared_experts.w2.weight").detach().zero_();
    const at::Tensor input = some_input(1);
    const at::Tensor h = attend(bare.expert_layer(kLayer), input).residual.detach();
    const at::Tensor output = tiny.model.layers()[kLayer]->forward(input, PartRunner()).detach();
    for (int64_t t = 0; t < kSeqLen; ++t) {
      const at::Tensor expected = moe_of_token(tiny, h[0][t].to(at::kDouble));
      EXPECT_LT((output[0][t] - expected).abs().max().item<double>(), 2e-5) << t;
    }
  }
}

TEST_F(MoeTest, RowsTravelAndReturnAndTheirGradientsToo) {
  const at::Tensor x = at::randn({5, 4}).requires_grad_();
  const at::Tensor places = at::tensor({7, 0, 3, 9, 1, 2, 8, 4, 6, 5}, at::kLong);
  const at::Tensor token_of_row = at::floor_divide(inverse_of(places), 2);
  const at::Tensor rows = rows_of_tokens(x, token_of_row, places);
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_TRUE(rows[places[i].item<int64_t>()].equal(x[i / 2])) << i;
  }
  const at::Tensor factors = at::randn({10, 4});
  const at::Tensor back = sum_of_rows(rows * factors, places, 2);
  const at::Tensor total = factors.index_select(0, places).view({5, 2, 4}).sum(1);
  EXPECT_TRUE(at::allclose(back, x * total));
  const at::Tensor upstream = at::randn({5, 4});
  back.backward(upstream);
  EXPECT_TRUE(at::allclose(x.grad(), upstream * total));
}

TEST_F(MoeTest, ForcedBalanceGoesRoundTheExperts) {
  const TinyDeepseek tiny = make(tiny_deepseek(), {}, /*force_load_balance=*/true);
  const AttendedAtOnce attended = attend(tiny.expert_layer(kLayer), some_input(1));
  EXPECT_EQ(attended.counts, std::vector<int64_t>(8, 6));
  // Token 3 has choices 9, 10, 11: experts 1, 2, 3, in which token 0, or it, came first.
  EXPECT_EQ(attended.places.narrow(0, 9, 3).equal(at::tensor({7, 13, 19}, at::kLong)), true);
  TinyDeepseek odd = make(tiny_deepseek(), {}, /*force_load_balance=*/true);
  const at::Tensor loads_before = odd.model.expert_loads()[0];
  const AttendedAtOnce few =
      attend(odd.expert_layer(kLayer), at::randn({1, kSeqLen, 32}).repeat({3, 1, 1}));
  EXPECT_EQ(few.counts, std::vector<int64_t>(8, 18));
  EXPECT_EQ(loads_before.sum().item<double>(), 0);
  EXPECT_TRUE(odd.model.expert_loads()[0].equal(at::full({8}, 18.0, at::kFloat)));
}

TEST_F(MoeTest, CountsAreThoseOfTheChoices) {
  const TinyDeepseek tiny = make();
  const AttendedAtOnce attended = attend(tiny.expert_layer(kLayer), some_input());
  EXPECT_EQ(std::accumulate(attended.counts.begin(), attended.counts.end(), int64_t{0}),
            2 * kSeqLen * 3);
  const at::Tensor loads = tiny.model.expert_loads()[0];
  for (int64_t expert = 0; expert < 8; ++expert) {
    EXPECT_EQ(loads[expert].item<int64_t>(), attended.counts[expert]);
  }
  EXPECT_EQ(attended.tokens.sizes(), (std::vector<int64_t>{2 * kSeqLen * 3, 32}));
  EXPECT_EQ(attended.weights.sizes(), (std::vector<int64_t>{2 * kSeqLen * 3, 1}));
}

TEST_F(MoeTest, LoadsAreCountedOnceAndNotInARecompute) {
  TinyDeepseek tiny = make();
  const at::Tensor input = some_input();
  const double rows = 2 * kSeqLen * 3;
  const auto total = [&] { return tiny.model.expert_loads()[0].sum().item<double>(); };
  tiny.model.layers()[kLayer]->forward(input, PartRunner());
  EXPECT_EQ(total(), rows);
  tiny.model.set_counting(false);
  tiny.model.layers()[kLayer]->forward(input, PartRunner());
  attend(tiny.expert_layer(kLayer), input);
  EXPECT_EQ(total(), rows);
  tiny.model.set_counting(true);
  attend(tiny.expert_layer(kLayer), input);
  EXPECT_EQ(total(), 2 * rows);
  attend(tiny.expert_layer(kLayer), input, /*counts=*/false);
  EXPECT_EQ(total(), 2 * rows);
  tiny.model.balance(tiny.model.expert_loads());
  EXPECT_EQ(total(), 0);
}

TEST_F(MoeTest, BiasMovesAStepTowardsTheMean) {
  LoadBalance balance{at::zeros({4}), at::zeros({4}, at::kLong)};
  balance.change_bias(at::tensor({9.0F, 4.0F, 1.0F, 2.0F}));
  EXPECT_TRUE(balance.bias.equal(at::tensor({-1e-3F, 0.0F, 1e-3F, 1e-3F})));
  balance.is_forced = true;
  balance.change_bias(at::tensor({9.0F, 4.0F, 1.0F, 2.0F}));
  EXPECT_TRUE(balance.bias.equal(at::tensor({-1e-3F, 0.0F, 1e-3F, 1e-3F})));
}

TEST_F(MoeTest, BiasEvensTheLoadsOut) {
  TinyDeepseek tiny = make();
  const at::Tensor input = some_input(8) + at::randn({32});  // alike: they like the same experts
  const auto unevenness = [&] {
    tiny.model.layers()[kLayer]->forward(input, PartRunner());
    const std::vector<at::Tensor> loads = tiny.model.expert_loads();
    const double most = loads[0].max().item<double>() / loads[0].mean().item<double>();
    tiny.model.balance(loads);
    return most;
  };
  const double before = unevenness();
  for (int step = 0; step < 200; ++step) {
    unevenness();
  }
  EXPECT_GT(before, 1.5);
  EXPECT_LT(unevenness(), 1 + (before - 1) / 2);
}

// The bias decides who is chosen, not what a choice weighs.
TEST_F(MoeTest, BiasIsNotInTheWeights) {
  Router router;
  router.shape = tiny_deepseek().moe;
  router.shape.num_groups = 1;
  router.gate = at::randn({8, 32});
  router.balance =
      std::make_shared<LoadBalance>(LoadBalance{at::zeros({8}), at::zeros({8}, at::kLong)});
  router.shape.experts_per_token = 8;
  const at::Tensor x = at::randn({6, 32});
  const at::Tensor plain = std::get<0>(router.route(x, false).weights.sort(-1));
  router.balance->bias.copy_(at::linspace(5, -5, 8));
  const at::Tensor biased = router.route(x, false).weights;
  EXPECT_TRUE(at::allclose(std::get<0>(biased.sort(-1)), plain));
  EXPECT_TRUE(at::allclose(biased.sum(-1), at::full({6}, 2.5)));
  const at::Tensor scores = at::sigmoid(at::linear(x, router.gate));
  EXPECT_TRUE(at::allclose(biased, 2.5 * scores / scores.sum(-1, true)));  // in the bias' order
}

TEST_F(MoeTest, BalanceWithLoadsOfOtherLayersIsRefused) {
  TinyDeepseek tiny = make();
  EXPECT_THROW(tiny.model.balance({}), c10::Error);
}

}  // namespace
}  // namespace swapline::trainer
