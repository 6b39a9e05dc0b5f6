#include "trainer/models/deepseek_v3_layer.h"

#include "trainer/models/mla.h"
#include "trainer/models/moe.h"
#include "trainer/models/moe_moves.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

struct FeedForward {
  at::Tensor w1, w2, w3;  // [F, D], [D, F], [F, D]

  at::Tensor run(const at::Tensor& x, const PartRunner& parts) const {
    const auto part = [*this](const std::vector<at::Tensor>& inputs) {
      return swiglu(inputs[0], w1, w2, w3);
    };
    return parts.run(LayerPart::kFeedForward, part, {x});
  }
};

struct AttentionBlock {
  at::Tensor norm;  // [D]
  double norm_eps = 0;
  Mla attention;

  at::Tensor run(const at::Tensor& hidden_states, const PartRunner& parts) const {
    return hidden_states + attention.forward(run_norm(hidden_states, norm, norm_eps, parts), parts);
  }
};

struct DenseLayer : Layer {
  AttentionBlock attention;
  at::Tensor ffn_norm;  // [D]
  FeedForward feed_forward;

  at::Tensor forward(const at::Tensor& hidden_states, const PartRunner& parts) const override {
    const at::Tensor h = attention.run(hidden_states, parts);
    return h + feed_forward.run(run_norm(h, ffn_norm, attention.norm_eps, parts), parts);
  }
};

struct MoeLayer : ExpertLayer {
  AttentionBlock attention;
  at::Tensor ffn_norm;  // [D]
  FeedForward shared;
  Router router;
  Experts routed;
  bool has_numbers = true;  // false in a dry run

  at::Tensor forward(const at::Tensor& hidden_states, const PartRunner& parts) const override;
  Routed route(const at::Tensor& hidden_states, bool counts) const override;
  std::vector<int64_t> known_counts(const Routed& routed) const override;
  Attended attend(const Routed& routed) const override;
  at::Tensor experts(const at::Tensor& tokens,
                     const at::Tensor& weights,
                     const std::vector<int64_t>& counts) const override {
    return routed.forward(tokens, weights, counts);
  }
  at::Tensor merge(const at::Tensor& residual,
                   const at::Tensor& returned,
                   const at::Tensor& places) const override {
    return residual +
           sum_of_rows(returned, places, router.shape.experts_per_token).view(residual.sizes());
  }

  at::Tensor sorted_tokens(const at::Tensor& x, const RowOrder& rows) const {
    return rows_of_tokens(x.flatten(0, 1), rows.token_of_row, rows.places);
  }
  at::Tensor sorted_weights(const at::Tensor& weights, const RowOrder& rows) const {
    return rows_of_tokens(weights.view({-1, 1}), rows.choice_of_row, rows.places);
  }
};

at::Tensor MoeLayer::forward(const at::Tensor& hidden_states, const PartRunner& parts) const {
  const at::Tensor h = attention.run(hidden_states, parts);
  const at::Tensor x = run_norm(h, ffn_norm, attention.norm_eps, parts);
  const Routing routing = router.route(x.flatten(0, 1), /*counts=*/true);
  // One part, shared and routed experts together: run again by itself, it adds up the gradients of
  // x in the order in which the whole layer does.
  const auto feed_forward = [this, rows = routing.rows](const std::vector<at::Tensor>& inputs) {
    const at::Tensor& normed = inputs[1];
    const at::Tensor residual = inputs[0] + shared.run(normed, PartRunner());
    const at::Tensor returned =
        routed.forward(sorted_tokens(normed, rows), sorted_weights(inputs[2], rows), rows.ends);
    return residual +
           sum_of_rows(returned, rows.places, router.shape.experts_per_token).view(normed.sizes());
  };
  return parts.run(LayerPart::kFeedForward, feed_forward, {h, x, routing.weights});
}

Routed MoeLayer::route(const at::Tensor& hidden_states, bool counts) const {
  const PartRunner plainly;
  Routed routed;
  routed.residual = attention.run(hidden_states, plainly);
  routed.normed = run_norm(routed.residual, ffn_norm, attention.norm_eps, plainly);
  Routing routing = router.route(routed.normed.flatten(0, 1), counts);
  routed.weights = std::move(routing.weights);
  routed.rows = std::move(routing.rows);
  return routed;
}

std::vector<int64_t> MoeLayer::known_counts(const Routed& routed) const {
  if (router.balance->is_forced) {
    return router.forced_counts(routed.rows.places.size(0));
  }
  if (!has_numbers) {
    throw UsageError(
        "--device.dry-run: found experts on several ranks, whose loads depend on numbers that a "
        "dry run does not have; allowed with --debug.moe-force-load-balance");
  }
  return {};
}

Attended MoeLayer::attend(const Routed& routed) const {
  Attended attended;
  attended.residual = routed.residual + shared.run(routed.normed, PartRunner());
  attended.tokens = sorted_tokens(routed.normed, routed.rows);
  attended.weights = sorted_weights(routed.weights, routed.rows);
  attended.places = routed.rows.places;
  attended.token_of_row = routed.rows.token_of_row;
  return attended;
}

// Deeper layers add less, so that the sum over layers keeps its size.
double std_out(const LayerPlan& plan) {
  return 0.02 / std::sqrt(2.0 * static_cast<double>(plan.depth + 1));
}

AttentionBlock make_attention(const LayerPlan& plan, ParameterFactory& parameters) {
  AttentionBlock block;
  block.norm =
      parameters.ones(plan.device, plan.prefix + "attention_norm.weight", {plan.shape.dim});
  block.norm_eps = plan.shape.norm_eps;
  block.attention = make_mla(
      plan.shape, plan.prefix + "attention.", std_out(plan), plan.rope, plan.device, parameters);
  return block;
}

at::Tensor make_ffn_norm(const LayerPlan& plan, ParameterFactory& parameters) {
  return parameters.ones(plan.device, plan.prefix + "ffn_norm.weight", {plan.shape.dim});
}

FeedForward make_feed_forward(const LayerPlan& plan,
                              const std::string& name,
                              int64_t ffn_dim,
                              ParameterFactory& parameters) {
  const auto matrix = [&](const char* which, int64_t rows, int64_t columns, double std) {
    return parameters.normal(
        plan.device, plan.prefix + name + "." + which + ".weight", {rows, columns}, std);
  };
  FeedForward made;
  made.w1 = matrix("w1", ffn_dim, plan.shape.dim, 0.02);
  made.w2 = matrix("w2", plan.shape.dim, ffn_dim, std_out(plan));
  made.w3 = matrix("w3", ffn_dim, plan.shape.dim, 0.02);
  return made;
}

std::shared_ptr<LoadBalance> make_balance(const LayerPlan& plan, bool is_forced) {
  const auto options = at::TensorOptions().device(plan.device.torch_device());
  const auto balance = std::make_shared<LoadBalance>();
  balance->bias = at::zeros({plan.shape.moe.num_experts}, options.dtype(at::kFloat));
  balance->ends = at::zeros({plan.shape.moe.num_experts}, options.dtype(at::kLong));
  balance->is_forced = is_forced;
  return balance;
}

}  // namespace

LayerPtr make_dense_layer(const LayerPlan& plan, ParameterFactory& parameters) {
  const auto layer = std::make_shared<DenseLayer>();
  layer->attention = make_attention(plan, parameters);
  layer->ffn_norm = make_ffn_norm(plan, parameters);
  layer->feed_forward = make_feed_forward(plan, "feed_forward", plan.shape.ffn_dim, parameters);
  return layer;
}

RoutedLayer make_routed_layer(const LayerPlan& plan,
                              ExpertShard shard,
                              bool force_load_balance,
                              ParameterFactory& parameters) {
  const MoeShape& moe = plan.shape.moe;
  const auto layer = std::make_shared<MoeLayer>();
  layer->attention = make_attention(plan, parameters);
  layer->ffn_norm = make_ffn_norm(plan, parameters);
  layer->router.shape = moe;
  layer->router.gate = parameters.normal(
      plan.device, plan.prefix + "moe.router.gate.weight", {moe.num_experts, plan.shape.dim}, 0.02);
  layer->router.balance = make_balance(plan, force_load_balance);
  layer->shared =
      make_feed_forward(plan, "moe.shared_experts", moe.num_shared * moe.ffn_dim, parameters);
  layer->routed = make_experts(
      plan.shape, plan.prefix + "moe.experts.", std_out(plan), shard, plan.device, parameters);
  layer->has_numbers = !plan.device.is_dry_run();
  return {layer, layer->router.balance};
}

}  // namespace swapline::trainer
