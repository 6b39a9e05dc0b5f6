#include "sim/torch/attention_math.h"

#include <cmath>
#include <limits>

#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

namespace swapline::sim {
namespace {

using at::Tensor;

// Half precisions are computed in fp32.
Tensor widened(const Tensor& x) {
  return x.element_size() < 4 ? x.to(at::kFloat) : x;
}

// [B, H, T, D] -> [B * H, T, D], as a product of batches sees it.
Tensor one_batch(const Tensor& x) {
  return x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3)});
}

Tensor like(const Tensor& x, const Tensor& values) {
  return at::empty_like(x).copy_(values.unflatten(0, x.sizes().slice(0, 2)));
}

}  // namespace

Tensor math_attention(const Tensor& query,
                      const Tensor& key,
                      const Tensor& value,
                      const std::optional<Tensor>& mask,
                      bool is_causal,
                      std::optional<double> scale) {
  TORCH_CHECK(query.size(1) == key.size(1) && query.size(1) == value.size(1),
              "attention with values of another width than the keys: found ",
              query.size(1),
              " query heads and ",
              key.size(1),
              " key heads, allowed are equal numbers; repeat the keys and values");
  const Tensor mixed = std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, mask, 0.0, is_causal, /*dropout_mask=*/{}, scale));
  Tensor out =
      at::empty({query.size(0), query.size(2), query.size(1), value.size(3)}, query.options());
  return out.transpose_(1, 2).copy_(mixed);
}

std::tuple<Tensor, Tensor, Tensor> math_attention_backward(const Tensor& grad_out,
                                                           const Tensor& query,
                                                           const Tensor& key,
                                                           const Tensor& value,
                                                           const std::optional<Tensor>& mask,
                                                           bool is_causal,
                                                           std::optional<double> scale) {
  // The forward again: both factors of the scores get the root of the scale.
  const double width = static_cast<double>(query.size(-1));
  const double root = std::sqrt(scale.value_or(1.0 / std::sqrt(width)));
  const Tensor q = one_batch(widened(query).mul(root));
  const Tensor k = one_batch(widened(key).transpose(-2, -1).mul(root));
  const Tensor v = one_batch(widened(value));
  Tensor scores = at::bmm(q, k).view({query.size(0), query.size(1), q.size(1), k.size(2)});
  if (is_causal) {
    const double never = -std::numeric_limits<double>::infinity();
    scores.add_(at::full({q.size(1), k.size(2)}, never, q.options()).triu_(1));
  } else if (mask) {
    scores.add_(*mask);
  }
  const Tensor shares = one_batch(at::_safe_softmax(scores, -1));
  const Tensor g = one_batch(widened(grad_out));
  const Tensor grad_v = at::bmm(shares.transpose(1, 2), g);
  const Tensor grad_shares = at::bmm(g, v.transpose(1, 2));
  const Tensor grad_scores =
      at::_softmax_backward_data(grad_shares, shares, -1, shares.scalar_type());
  const Tensor grad_k = at::bmm(q.transpose(1, 2), grad_scores).mul_(root).transpose(1, 2);
  const Tensor grad_q = at::bmm(grad_scores, k.transpose(1, 2)).mul_(root);
  return {like(query, grad_q), like(key, grad_k), like(value, grad_v)};
}

}  // namespace swapline::sim
