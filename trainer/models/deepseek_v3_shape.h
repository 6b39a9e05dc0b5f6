// The published shapes of DeepSeek-V3-like models, and what follows from them: sizes, arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace swapline::trainer {

// Multi-head latent attention: keys and values of all heads come from one short vector a token.
struct MlaShape {
  int64_t num_heads = 0;
  int64_t q_rank = 0;     // width of the compressed queries; 0: not compressed
  int64_t kv_rank = 0;    // width of the compressed keys and values
  int64_t nope_dim = 0;   // of a query or key head: without positions
  int64_t rope_dim = 0;   // and with rotary positions; the keys' are shared by all heads
  int64_t value_dim = 0;  // of a value head

  int64_t key_dim() const { return nope_dim + rope_dim; }
  int64_t num_parameters(int64_t dim) const;
};

// Experts of which each token takes a few, and shared ones that every token takes.
struct MoeShape {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t num_shared = 0;
  int64_t ffn_dim = 0;  // of one expert
  int64_t num_groups = 1;
  int64_t groups_per_token = 1;  // a token's experts are all in that many groups
  bool sigmoid_scores = false;   // else softmax
  bool normalized = false;       // a token's weights are made to sum to route_scale
  double route_scale = 1;

  int64_t num_parameters(int64_t dim) const;
  int64_t num_active_parameters(int64_t dim) const;  // that a token meets
};

struct DeepseekV3Shape {
  std::string flavor;
  int64_t dim = 0;
  int64_t num_layers = 0;
  int64_t num_dense_layers = 0;  // the first ones, which have a feed-forward in place of experts
  int64_t ffn_dim = 0;           // of those
  int64_t vocab_size = 0;
  MlaShape attention;
  MoeShape moe;
  int64_t num_mtp_modules = 0;  // each foretells one token further
  double rope_theta = 10000;
  double norm_eps = 1e-6;

  // All parameters, embedding and head included; those of MTP modules are their projections, norms
  // and layers, since embedding and head are the model's own.
  int64_t num_parameters() const;
  // Forward and backward, recompute not counted: 6 per parameter of a product that a token meets
  // (of the experts, only its own), and the attention. MTP modules meet the head once more each.
  double flops_per_token(int64_t seq_len) const;
};

std::vector<std::string> deepseek_v3_flavor_names();
// Throws: UsageError naming the flavors there are.
DeepseekV3Shape deepseek_v3_shape(std::string_view flavor);

}  // namespace swapline::trainer
