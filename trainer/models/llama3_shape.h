// The published shapes of Llama 3 models, and what follows from them: sizes and arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace swapline::trainer {

struct Llama3Shape {
  std::string flavor;
  int64_t dim = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t ffn_dim = 0;
  int64_t vocab_size = 0;
  bool tied_head = false;  // the output head is the embedding's own matrix
  double rope_theta = 500000;
  double norm_eps = 1e-5;

  int64_t head_dim() const { return dim / num_heads; }
  int64_t kv_dim() const { return num_kv_heads * head_dim(); }
  int64_t num_parameters() const;
  // Forward and backward, recompute not counted: 6 per parameter of a product, 12 for attention.
  double flops_per_token(int64_t seq_len) const;
};

std::vector<std::string> llama3_flavor_names();
// Throws: UsageError naming the flavors there are.
Llama3Shape llama3_shape(std::string_view flavor);

}  // namespace swapline::trainer
