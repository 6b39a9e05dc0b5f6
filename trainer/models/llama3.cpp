// The layers of Llama 3. Shapes: B sequences, T tokens, D = dim, H heads (Hk for keys and values)
// of E = D / H each, F = hidden size of the feed-forward, V = vocabulary.
#include "trainer/models/llama3.h"

#include "trainer/models/blocks.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

struct Llama3Layer : Layer {
  Llama3Shape shape;
  Rope rope;
  at::Tensor attention_norm, wq, wk, wv, wo;  // [D], [D, D], [Hk*E, D], [Hk*E, D], [D, D]
  at::Tensor ffn_norm, w1, w2, w3;            // [D], [F, D], [D, F], [F, D]

  at::Tensor forward(const at::Tensor& hidden_states, const PartRunner& parts) const override;
  at::Tensor attention(const at::Tensor& x, const PartRunner& parts) const;
  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, const PartRunner& parts) const;
};

// Every key or value head once for each query head it serves. [B, T, Hk, E] -> [B, T, H, E].
at::Tensor repeat_heads(const at::Tensor& x, int64_t times) {
  if (times == 1) {
    return x;
  }
  const auto sizes = x.sizes();
  return x.unsqueeze(3)
      .expand({sizes[0], sizes[1], sizes[2], times, sizes[3]})
      .reshape({sizes[0], sizes[1], sizes[2] * times, sizes[3]});
}

at::Tensor Llama3Layer::attention(const at::Tensor& x, const PartRunner& parts) const {
  const int64_t batch = x.size(0);
  const int64_t seq_len = x.size(1);
  const auto heads = [&](const at::Tensor& weight, int64_t num_heads) {
    return at::linear(x, weight).view({batch, seq_len, num_heads, shape.head_dim()});
  };
  const at::Tensor q = rotate(heads(wq, shape.num_heads), rope);
  const at::Tensor k = rotate(heads(wk, shape.num_kv_heads), rope);
  const at::Tensor v = heads(wv, shape.num_kv_heads);
  const int64_t times = shape.num_heads / shape.num_kv_heads;
  const auto core = [times](const std::vector<at::Tensor>& qkv) {
    const at::Tensor mixed =
        at::scaled_dot_product_attention(qkv[0].transpose(1, 2),
                                         repeat_heads(qkv[1], times).transpose(1, 2),
                                         repeat_heads(qkv[2], times).transpose(1, 2),
                                         /*attn_mask=*/{},
                                         /*dropout_p=*/0.0,
                                         /*is_causal=*/true);
    return mixed.transpose(1, 2).flatten(2);
  };
  return at::linear(parts.run(LayerPart::kAttentionCore, core, {q, k, v}), wo);
}

at::Tensor Llama3Layer::norm(const at::Tensor& x,
                             const at::Tensor& weight,
                             const PartRunner& parts) const {
  const auto norm =
      [weight, dim = shape.dim, eps = shape.norm_eps](const std::vector<at::Tensor>& inputs) {
        return at::rms_norm(inputs[0], {dim}, weight, eps);
      };
  return parts.run(LayerPart::kNorm, norm, {x});
}

at::Tensor Llama3Layer::forward(const at::Tensor& hidden_states, const PartRunner& parts) const {
  const at::Tensor h = hidden_states + attention(norm(hidden_states, attention_norm, parts), parts);
  const auto feed_forward = [this](const std::vector<at::Tensor>& inputs) {
    return swiglu(inputs[0], w1, w2, w3);
  };
  return h + parts.run(LayerPart::kFeedForward, feed_forward, {norm(h, ffn_norm, parts)});
}

LayerPtr make_layer(const Llama3Shape& shape,
                    int64_t index,
                    const Rope& rope,
                    Device& device,
                    ParameterFactory& parameters) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const double std_in = 0.02;
  // Deeper layers add less, so that the sum over layers keeps its size.
  const double std_out = 0.02 / std::sqrt(2.0 * static_cast<double>(index + 1));
  const int64_t dim = shape.dim;
  const auto matrix = [&](const char* name, int64_t rows, int64_t columns, double std) {
    return parameters.normal(device, prefix + name + ".weight", {rows, columns}, std);
  };
  const auto made = std::make_shared<Llama3Layer>();
  Llama3Layer& layer = *made;
  layer.shape = shape;
  layer.rope = rope;
  layer.attention_norm = parameters.ones(device, prefix + "attention_norm.weight", {dim});
  layer.wq = matrix("attention.wq", dim, dim, std_in);
  layer.wk = matrix("attention.wk", shape.kv_dim(), dim, std_in);
  layer.wv = matrix("attention.wv", shape.kv_dim(), dim, std_in);
  layer.wo = matrix("attention.wo", dim, dim, std_out);
  layer.ffn_norm = parameters.ones(device, prefix + "ffn_norm.weight", {dim});
  layer.w1 = matrix("feed_forward.w1", shape.ffn_dim, dim, std_in);
  layer.w2 = matrix("feed_forward.w2", dim, shape.ffn_dim, std_out);
  layer.w3 = matrix("feed_forward.w3", shape.ffn_dim, dim, std_in);
  return made;
}

}  // namespace

Llama3::Llama3(const Llama3Shape& shape,
               int64_t seq_len,
               const Placement& placement,
               ParameterFactory& parameters)
    : shape_(shape) {
  RopeTables ropes(shape.head_dim(), shape.rope_theta, seq_len);
  const std::vector<int64_t> table = {shape.vocab_size, shape.dim};
  embedding_ = parameters.normal(*placement.embedding, "tok_embeddings.weight", table, 1.0);
  const NamedParameter embedding = parameters.parameters().back();
  for (int64_t index = 0; index < shape.num_layers; ++index) {
    Device& device = *placement.layers[static_cast<size_t>(index)];
    layers_.push_back(make_layer(shape, index, ropes.on(device, parameters), device, parameters));
  }
  Device& device = *placement.head;
  norm_ = parameters.ones(device, "norm.weight", {shape.dim});
  if (!shape.tied_head) {
    const double std = 1.0 / std::sqrt(static_cast<double>(shape.dim));
    head_ = parameters.normal(device, "output.weight", table, std);
  } else if (&device == placement.embedding) {
    head_ = embedding_;
  } else {
    tied_.emplace_back(embedding, parameters.copy_to(device, embedding));
    head_ = tied_.back().second.tensor;
  }
}

at::Tensor Llama3::embed(const at::Tensor& tokens) const {
  return at::embedding(embedding_, tokens);
}

at::Tensor Llama3::loss(const at::Tensor& hidden_states,
                        const at::Tensor& targets,
                        const RunLayer& /*run_layer*/) const {
  return head_loss(
      at::rms_norm(hidden_states, {shape_.dim}, norm_, shape_.norm_eps), head_, targets);
}

}  // namespace swapline::trainer
