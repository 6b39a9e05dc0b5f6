// Queries and keys are each joined from a part without positions and a rotated one.
#include "trainer/models/mla.h"

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

at::Tensor mix(const std::vector<at::Tensor>& qkv) {
  const at::Tensor mixed = at::scaled_dot_product_attention(qkv[0].transpose(1, 2),
                                                            qkv[1].transpose(1, 2),
                                                            qkv[2].transpose(1, 2),
                                                            /*attn_mask=*/{},
                                                            /*dropout_p=*/0.0,
                                                            /*is_causal=*/true);
  return mixed.transpose(1, 2).flatten(2);
}

}  // namespace

at::Tensor run_norm(const at::Tensor& x,
                    const at::Tensor& weight,
                    double eps,
                    const PartRunner& parts) {
  const auto norm = [weight, eps](const std::vector<at::Tensor>& inputs) {
    return at::rms_norm(inputs[0], weight.sizes(), weight, eps);
  };
  return parts.run(LayerPart::kNorm, norm, {x});
}

at::Tensor Mla::forward(const at::Tensor& x, const PartRunner& parts) const {
  const int64_t batch = x.size(0);
  const int64_t seq_len = x.size(1);
  const auto heads = [&](const at::Tensor& y) {
    return y.view({batch, seq_len, shape.num_heads, -1});
  };
  const at::Tensor queries =
      wq.defined() ? at::linear(x, wq)
                   : at::linear(run_norm(at::linear(x, wq_a), q_norm, norm_eps, parts), wq_b);
  const auto q = heads(queries).split_with_sizes({shape.nope_dim, shape.rope_dim}, -1);

  const auto compressed =
      at::linear(x, wkv_a).split_with_sizes({shape.kv_rank, shape.rope_dim}, -1);
  const auto kv = heads(at::linear(run_norm(compressed[0], kv_norm, norm_eps, parts), wkv_b))
                      .split_with_sizes({shape.nope_dim, shape.value_dim}, -1);
  const at::Tensor rotated_key = rotate(compressed[1].unsqueeze(2), rope)
                                     .expand({batch, seq_len, shape.num_heads, shape.rope_dim});

  const at::Tensor query = at::cat({q[0], rotate(q[1], rope)}, -1);
  const at::Tensor key = at::cat({kv[0], rotated_key}, -1);
  return at::linear(parts.run(LayerPart::kAttentionCore, mix, {query, key, kv[1]}), wo);
}

Mla make_mla(const DeepseekV3Shape& shape,
             const std::string& prefix,
             double std_out,
             const Rope& rope,
             Device& device,
             ParameterFactory& parameters) {
  const auto matrix = [&](const char* name, int64_t rows, int64_t columns, double std = 0.02) {
    return parameters.normal(device, prefix + name + ".weight", {rows, columns}, std);
  };
  const MlaShape& sizes = shape.attention;
  const int64_t queries = sizes.num_heads * sizes.key_dim();
  Mla mla;
  mla.shape = sizes;
  mla.norm_eps = shape.norm_eps;
  mla.rope = rope;
  if (sizes.q_rank == 0) {
    mla.wq = matrix("wq", queries, shape.dim);
  } else {
    mla.wq_a = matrix("wq_a", sizes.q_rank, shape.dim);
    mla.q_norm = parameters.ones(device, prefix + "q_norm.weight", {sizes.q_rank});
    mla.wq_b = matrix("wq_b", queries, sizes.q_rank);
  }
  mla.wkv_a = matrix("wkv_a", sizes.kv_rank + sizes.rope_dim, shape.dim);
  mla.kv_norm = parameters.ones(device, prefix + "kv_norm.weight", {sizes.kv_rank});
  mla.wkv_b = matrix("wkv_b", sizes.num_heads * (sizes.nope_dim + sizes.value_dim), sizes.kv_rank);
  mla.wo = matrix("wo", shape.dim, sizes.num_heads * sizes.value_dim, std_out);
  return mla;
}

}  // namespace swapline::trainer
