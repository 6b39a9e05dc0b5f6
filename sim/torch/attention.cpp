// Fused scaled-dot-product attention, forward and backward, by torch's CPU kernels: scores are
// never held in device memory, as on real devices.
#include "sim/torch/attention_math.h"
#include "sim/torch/launch.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"

#include <array>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace swapline::sim {
namespace {

using at::Tensor;

// Products of 2 * b * h * q * k * d each, where d is the width of the keys in some and of the
// values in others; causal masks skip half of each.
struct NumProducts {
  double of_keys;
  double of_values;
};
constexpr NumProducts kForward = {1, 1};
constexpr NumProducts kBackward = {3, 2};

double flops(NumProducts num, const Tensor& query, const Tensor& value, bool is_causal) {
  const double rows = static_cast<double>(query.size(0) * query.size(1) * query.size(2));
  const double width = num.of_keys * static_cast<double>(query.size(3)) +
                       num.of_values * static_cast<double>(value.size(3));
  const double products = 2.0 * rows * static_cast<double>(value.size(2)) * width;
  return is_causal ? products / 2 : products;
}

int64_t choose(const Tensor& /*query*/,
               const Tensor& /*key*/,
               const Tensor& /*value*/,
               const std::optional<Tensor>& mask,
               double dropout,
               bool /*is_causal*/,
               std::optional<double> /*scale*/,
               bool /*enable_gqa*/) {
  const bool is_fused = dropout == 0 && !(mask && mask->requires_grad());
  return static_cast<int64_t>(is_fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

using Forward =
    std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Forward forward(const Tensor& query,
                const Tensor& key,
                const Tensor& value,
                const std::optional<Tensor>& bias,
                double dropout,
                bool is_causal,
                bool /*return_debug_mask*/,
                std::optional<double> scale) {
  TORCH_CHECK(dropout == 0, "fused attention on the simulated device has no dropout");
  Launch launch("aten::_scaled_dot_product_fused_attention_overrideable", query.device().index());
  const Tensor q = launch.in(query);
  const Tensor k = launch.in(key);
  const Tensor v = launch.in(value);
  const std::optional<Tensor> mask = bias ? std::optional(launch.in(*bias)) : std::nullopt;
  launch.begin();
  Tensor output;
  Tensor logsumexp;
  if (launch.is_dry()) {
    // [B, H, T, D] laid out as the CPU kernel lays it out: [B, T, H, D].
    output = at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options()).transpose(1, 2);
    logsumexp = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  } else if (has_other_width(q, v)) {
    output = math_attention(q, k, v, mask, is_causal, scale);
    logsumexp = at::zeros({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  } else {
    std::tie(output, logsumexp) =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, mask, scale);
  }
  output = launch.out(output);
  logsumexp = launch.out(logsumexp);
  launch.end(flops(kForward, query, value, is_causal));
  return {output,
          logsumexp,
          Tensor(),
          Tensor(),
          query.size(2),
          key.size(2),
          Tensor(),
          Tensor(),
          Tensor()};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward(const Tensor& grad_out,
                                                    const Tensor& query,
                                                    const Tensor& key,
                                                    const Tensor& value,
                                                    const Tensor& bias,
                                                    std::array<bool, 4> /*wanted*/,
                                                    const Tensor& out,
                                                    const Tensor& logsumexp,
                                                    const Tensor& /*cum_seq_q*/,
                                                    const Tensor& /*cum_seq_k*/,
                                                    c10::SymInt /*max_q*/,
                                                    c10::SymInt /*max_k*/,
                                                    double /*dropout*/,
                                                    bool is_causal,
                                                    const Tensor& /*philox_seed*/,
                                                    const Tensor& /*philox_offset*/,
                                                    std::optional<double> scale) {
  Launch launch("aten::_scaled_dot_product_fused_attention_overrideable_backward",
                query.device().index());
  const Tensor g = launch.in(grad_out);
  const Tensor q = launch.in(query);
  const Tensor k = launch.in(key);
  const Tensor v = launch.in(value);
  const Tensor o = launch.in(out);
  const Tensor lse = launch.in(logsumexp);
  const std::optional<Tensor> mask = bias.defined() ? std::optional(launch.in(bias)) : std::nullopt;
  launch.begin();
  Tensor grad_q;
  Tensor grad_k;
  Tensor grad_v;
  if (launch.is_dry()) {
    grad_q = at::empty_like(q);
    grad_k = at::empty_like(k);
    grad_v = at::empty_like(v);
  } else if (has_other_width(q, v)) {
    std::tie(grad_q, grad_k, grad_v) = math_attention_backward(g, q, k, v, mask, is_causal, scale);
  } else {
    std::tie(grad_q, grad_k, grad_v) = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, o, lse, 0.0, is_causal, mask, scale);
  }
  grad_q = launch.out(grad_q);
  grad_k = launch.out(grad_k);
  grad_v = launch.out(grad_v);
  launch.end(flops(kBackward, query, value, is_causal));
  return {grad_q, grad_k, grad_v, Tensor()};
}

int64_t choose_op(const Tensor& query,
                  const Tensor& key,
                  const Tensor& value,
                  const std::optional<Tensor>& mask,
                  double dropout,
                  bool is_causal,
                  std::optional<double> scale,
                  bool enable_gqa) {
  return choose(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choose_op);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &forward);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", &backward);
}

}  // namespace
}  // namespace swapline::sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &swapline::sim::choose)
}  // namespace at::native
