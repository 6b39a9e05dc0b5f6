// The layers of Llama 3. Shapes: B sequences, T tokens, D = dim, H heads (Hk for keys and values)
// of E = D / H each, F = hidden size of the feed-forward, V = vocabulary.
#include "trainer/llama3.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

struct Rope {
  at::Tensor cos;  // [T, 1, E]
  at::Tensor sin;  // [T, 1, E], the first half negated
};

struct Layer {
  Llama3Shape shape;
  Rope rope;
  at::Tensor attention_norm, wq, wk, wv, wo;  // [D], [D, D], [Hk*E, D], [Hk*E, D], [D, D]
  at::Tensor ffn_norm, w1, w2, w3;            // [D], [F, D], [D, F], [F, D]

  at::Tensor forward(const at::Tensor& hidden_states) const;
  at::Tensor attention(const at::Tensor& x) const;
  at::Tensor feed_forward(const at::Tensor& x) const;
};

Rope make_rope(const Llama3Shape& shape, int64_t seq_len, const ParameterFactory& parameters) {
  const int64_t half = shape.head_dim() / 2;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor frequency =
      at::pow(shape.rope_theta, at::arange(half, options).neg() / static_cast<double>(half));
  const at::Tensor angle = at::outer(at::arange(seq_len, options), frequency).unsqueeze(1);
  const at::Tensor sin = at::sin(angle);
  const at::Tensor cos = at::cos(angle);
  return {parameters.constant(at::cat({cos, cos}, -1)),
          parameters.constant(at::cat({-sin, sin}, -1))};
}

// Rotates the pairs (x[i], x[i + E/2]). x: [B, T, H, E].
at::Tensor rotate(const at::Tensor& x, const Rope& rope) {
  const std::vector<at::Tensor> halves = at::chunk(x, 2, -1);
  return at::addcmul(at::mul(x, rope.cos), at::cat({halves[1], halves[0]}, -1), rope.sin);
}

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

at::Tensor Layer::attention(const at::Tensor& x) const {
  const int64_t batch = x.size(0);
  const int64_t seq_len = x.size(1);
  const auto heads = [&](const at::Tensor& weight, int64_t num_heads) {
    return at::linear(x, weight).view({batch, seq_len, num_heads, shape.head_dim()});
  };
  const int64_t times = shape.num_heads / shape.num_kv_heads;
  const at::Tensor q = rotate(heads(wq, shape.num_heads), rope);
  const at::Tensor k = repeat_heads(rotate(heads(wk, shape.num_kv_heads), rope), times);
  const at::Tensor v = repeat_heads(heads(wv, shape.num_kv_heads), times);
  const at::Tensor mixed = at::scaled_dot_product_attention(q.transpose(1, 2),
                                                            k.transpose(1, 2),
                                                            v.transpose(1, 2),
                                                            /*attn_mask=*/{},
                                                            /*dropout_p=*/0.0,
                                                            /*is_causal=*/true);
  return at::linear(mixed.transpose(1, 2).reshape({batch, seq_len, shape.dim}), wo);
}

at::Tensor Layer::feed_forward(const at::Tensor& x) const {
  return at::linear(at::mul(at::silu(at::linear(x, w1)), at::linear(x, w3)), w2);
}

at::Tensor Layer::forward(const at::Tensor& hidden_states) const {
  const at::Tensor h =
      hidden_states +
      attention(at::rms_norm(hidden_states, {shape.dim}, attention_norm, shape.norm_eps));
  return h + feed_forward(at::rms_norm(h, {shape.dim}, ffn_norm, shape.norm_eps));
}

Layer make_layer(const Llama3Shape& shape,
                 int64_t index,
                 const Rope& rope,
                 ParameterFactory& parameters) {
  const std::string prefix = "layers." + std::to_string(index) + ".";
  const double std_in = 0.02;
  // Deeper layers add less, so that the sum over layers keeps its size.
  const double std_out = 0.02 / std::sqrt(2.0 * static_cast<double>(index + 1));
  const int64_t dim = shape.dim;
  const auto matrix = [&](const char* name, int64_t rows, int64_t columns, double std) {
    return parameters.normal(prefix + name + ".weight", {rows, columns}, std);
  };
  Layer layer;
  layer.shape = shape;
  layer.rope = rope;
  layer.attention_norm = parameters.ones(prefix + "attention_norm.weight", {dim});
  layer.wq = matrix("attention.wq", dim, dim, std_in);
  layer.wk = matrix("attention.wk", shape.kv_dim(), dim, std_in);
  layer.wv = matrix("attention.wv", shape.kv_dim(), dim, std_in);
  layer.wo = matrix("attention.wo", dim, dim, std_out);
  layer.ffn_norm = parameters.ones(prefix + "ffn_norm.weight", {dim});
  layer.w1 = matrix("feed_forward.w1", shape.ffn_dim, dim, std_in);
  layer.w2 = matrix("feed_forward.w2", dim, shape.ffn_dim, std_out);
  layer.w3 = matrix("feed_forward.w3", shape.ffn_dim, dim, std_in);
  return layer;
}

}  // namespace

Llama3::Llama3(const Llama3Shape& shape, int64_t seq_len, ParameterFactory& parameters)
    : shape_(shape) {
  const Rope rope = make_rope(shape, seq_len, parameters);
  embedding_ = parameters.normal("tok_embeddings.weight", {shape.vocab_size, shape.dim}, 1.0);
  for (int64_t index = 0; index < shape.num_layers; ++index) {
    const auto layer = std::make_shared<const Layer>(make_layer(shape, index, rope, parameters));
    layers_.emplace_back([layer](const at::Tensor& x) { return layer->forward(x); });
  }
  norm_ = parameters.ones("norm.weight", {shape.dim});
  const double std_head = 1.0 / std::sqrt(static_cast<double>(shape.dim));
  head_ = shape.tied_head
              ? embedding_
              : parameters.normal("output.weight", {shape.vocab_size, shape.dim}, std_head);
}

at::Tensor Llama3::embed(const at::Tensor& tokens) const {
  return at::embedding(embedding_, tokens);
}

at::Tensor Llama3::loss(const at::Tensor& hidden_states, const at::Tensor& targets) const {
  at::Tensor logits =
      at::linear(at::rms_norm(hidden_states, {shape_.dim}, norm_, shape_.norm_eps), head_);
  // Logits are the largest tensor of the step: nothing holds them once the logarithms are there.
  at::Tensor log_probabilities =
      at::log_softmax(std::exchange(logits, {}).flatten(0, 1), -1, at::kFloat);
  return at::nll_loss(log_probabilities, targets.flatten());
}

}  // namespace swapline::trainer
