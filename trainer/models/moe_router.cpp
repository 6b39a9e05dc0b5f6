// Scores are computed in float32: ties and near ties decide which experts train.
#include "trainer/models/moe_router.h"

#include "trainer/models/moe_moves.h"

#include <limits>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace swapline::trainer {
namespace {

constexpr double kBiasStep = 1e-3;       // DeepSeek-V3, until the last 500B tokens
constexpr int64_t kBestOfGroup = 2;      // a group counts by the sum of its best two
constexpr double kLeastWeights = 1e-20;  // the sum that weights are divided by is never zero

// Leaves only the experts of each token's best groups. [S, E] -> [S, E].
at::Tensor without_other_groups(const at::Tensor& preferences, const MoeShape& shape) {
  const at::Tensor groups = preferences.view({preferences.size(0), shape.num_groups, -1});
  const at::Tensor scores = std::get<0>(groups.topk(kBestOfGroup, -1)).sum(-1);
  const at::Tensor best = std::get<1>(scores.topk(shape.groups_per_token, -1));
  const at::Tensor is_other =
      at::ones(scores.sizes(), scores.options().dtype(at::kBool)).scatter_(1, best, false);
  const double never = -std::numeric_limits<double>::infinity();
  return groups.masked_fill(is_other.unsqueeze(-1), never).view(preferences.sizes());
}

RowOrder sorted_by_expert(const at::Tensor& experts, const MoeShape& shape) {
  const auto [sorted, order] = experts.flatten().sort(/*stable=*/true, -1, /*descending=*/false);
  RowOrder rows;
  rows.choice_of_row = order;
  rows.token_of_row = at::floor_divide(order, shape.experts_per_token);
  rows.places = inverse_of(order);
  // Ends by search: counting would add with atomics, or make a shape depend on data.
  rows.ends = at::searchsorted(
      sorted, at::arange(shape.num_experts, sorted.options()), /*out_int32=*/true, /*right=*/true);
  return rows;
}

}  // namespace

at::Tensor LoadBalance::loads() const {
  const int64_t num_experts = ends.size(0);
  const at::Tensor first = ends.narrow(0, 0, 1);
  const at::Tensor others = ends.narrow(0, 1, num_experts - 1) - ends.narrow(0, 0, num_experts - 1);
  return at::cat({first, others}).to(at::kFloat);
}

void LoadBalance::change_bias(const at::Tensor& loads) {
  if (!is_forced) {
    bias.add_(at::sign(loads.mean() - loads), kBiasStep);
  }
  ends.zero_();
}

at::Tensor Router::choose(const at::Tensor& scores) const {
  const c10::NoGradGuard no_grad;
  const int64_t num_tokens = scores.size(0);
  const int64_t num_choices = shape.experts_per_token;
  if (balance->is_forced) {
    const at::Tensor turns =
        at::arange(num_tokens * num_choices, scores.options().dtype(at::kLong));
    return turns.remainder(shape.num_experts).view({num_tokens, num_choices});
  }
  at::Tensor preferences = scores.detach() + balance->bias;
  if (shape.num_groups > 1) {
    preferences = without_other_groups(preferences, shape);
  }
  return std::get<1>(preferences.topk(num_choices, -1));
}

Routing Router::route(const at::Tensor& x, bool counts) const {
  const at::Tensor logits = at::linear(x, gate).to(at::kFloat);
  const at::Tensor scores = shape.sigmoid_scores ? at::sigmoid(logits) : at::softmax(logits, -1);
  const at::Tensor experts = choose(scores);
  at::Tensor weights = scores.gather(1, experts);
  if (shape.normalized) {
    weights = weights / (weights.sum(-1, /*keepdim=*/true) + kLeastWeights);
  }
  if (shape.route_scale != 1) {
    weights = weights * shape.route_scale;
  }
  Routing routing{weights.to(x.scalar_type()), sorted_by_expert(experts, shape)};
  if (counts && balance->counts) {
    balance->ends.add_(routing.rows.ends);
  }
  return routing;
}

std::vector<int64_t> Router::forced_counts(int64_t num_rows) const {
  std::vector<int64_t> counts;
  for (int64_t expert = 0; expert < shape.num_experts; ++expert) {
    counts.push_back(num_rows / shape.num_experts + (expert < num_rows % shape.num_experts));
  }
  return counts;
}

}  // namespace swapline::trainer
