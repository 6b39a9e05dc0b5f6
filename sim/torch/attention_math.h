// Attention whose values are wider or narrower than its keys. torch's CPU has no fused kernel for
// it and takes single operators; here the same ones, in the same order: bits depend on it.
#pragma once

#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>

namespace swapline::sim {

inline bool has_other_width(const at::Tensor& query, const at::Tensor& value) {
  return query.size(-1) != value.size(-1);
}

// CPU tensors, [B, H, T, D] by [B, H, S, D] and [B, H, S, Dv] -> [B, H, T, Dv], laid out as
// [B, T, H, Dv] like the results of fused kernels. Throws: c10::Error when keys have fewer heads.
at::Tensor math_attention(const at::Tensor& query,
                          const at::Tensor& key,
                          const at::Tensor& value,
                          const std::optional<at::Tensor>& mask,
                          bool is_causal,
                          std::optional<double> scale);

// Gradients of query, key and value, laid out like them.
std::tuple<at::Tensor, at::Tensor, at::Tensor> math_attention_backward(
    const at::Tensor& grad_out,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    bool is_causal,
    std::optional<double> scale);

}  // namespace swapline::sim
