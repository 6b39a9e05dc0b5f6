// Shapes from the configurations published with DeepSeek-V2-Lite (16B) and DeepSeek-V3 (671B).
#include "trainer/models/deepseek_v3_shape.h"

#include "trainer/config.h"

#include <algorithm>

namespace swapline::trainer {
namespace {

DeepseekV3Shape debugmodel() {
  DeepseekV3Shape shape;
  shape.flavor = "debugmodel";
  shape.dim = 256;
  shape.num_layers = 6;
  shape.num_dense_layers = 1;
  shape.ffn_dim = 768;
  shape.vocab_size = 256;
  shape.attention = {
      .num_heads = 4, .q_rank = 0, .kv_rank = 128, .nope_dim = 64, .rope_dim = 32, .value_dim = 64};
  shape.moe.num_experts = 8;
  shape.moe.experts_per_token = 3;
  shape.moe.num_shared = 2;
  shape.moe.ffn_dim = 128;
  shape.moe.sigmoid_scores = true;
  shape.moe.normalized = true;
  return shape;
}

DeepseekV3Shape shape_16b() {
  DeepseekV3Shape shape;
  shape.flavor = "16B";
  shape.dim = 2048;
  shape.num_layers = 27;
  shape.num_dense_layers = 1;
  shape.ffn_dim = 10944;
  shape.vocab_size = 102400;
  shape.attention = {.num_heads = 16,
                     .q_rank = 0,
                     .kv_rank = 512,
                     .nope_dim = 128,
                     .rope_dim = 64,
                     .value_dim = 128};
  shape.moe.num_experts = 64;
  shape.moe.experts_per_token = 6;
  shape.moe.num_shared = 2;
  shape.moe.ffn_dim = 1408;
  return shape;
}

DeepseekV3Shape shape_671b() {
  DeepseekV3Shape shape;
  shape.flavor = "671B";
  shape.dim = 7168;
  shape.num_layers = 61;
  shape.num_dense_layers = 3;
  shape.ffn_dim = 18432;
  shape.vocab_size = 129280;
  shape.attention = {.num_heads = 128,
                     .q_rank = 1536,
                     .kv_rank = 512,
                     .nope_dim = 128,
                     .rope_dim = 64,
                     .value_dim = 128};
  shape.moe.num_experts = 256;
  shape.moe.experts_per_token = 8;
  shape.moe.num_shared = 1;
  shape.moe.ffn_dim = 2048;
  shape.moe.num_groups = 8;
  shape.moe.groups_per_token = 4;
  shape.moe.sigmoid_scores = true;
  shape.moe.normalized = true;
  shape.moe.route_scale = 2.5;
  return shape;
}

std::vector<DeepseekV3Shape> shapes() {
  return {debugmodel(), shape_16b(), shape_671b()};
}

// Parameters of a layer or an MTP module: all of them, or those that a token meets.
struct Counts {
  int64_t all = 0;
  int64_t active = 0;
};

Counts moe_layer(const DeepseekV3Shape& shape) {
  const int64_t others = shape.attention.num_parameters(shape.dim) + 2 * shape.dim;
  return {others + shape.moe.num_parameters(shape.dim),
          others + shape.moe.num_active_parameters(shape.dim)};
}

int64_t dense_layer(const DeepseekV3Shape& shape) {
  return shape.attention.num_parameters(shape.dim) + 2 * shape.dim + 3 * shape.dim * shape.ffn_dim;
}

// Projection, three norms, layer.
Counts mtp_module(const DeepseekV3Shape& shape) {
  const int64_t others = 2 * shape.dim * shape.dim + 3 * shape.dim;
  const Counts layer = moe_layer(shape);
  return {others + layer.all, others + layer.active};
}

// Without embedding and head.
Counts model(const DeepseekV3Shape& shape) {
  const int64_t num_dense = std::min(shape.num_dense_layers, shape.num_layers);
  const int64_t num_moe = shape.num_layers - num_dense;
  const Counts moe = moe_layer(shape);
  const Counts mtp = mtp_module(shape);
  const int64_t others = num_dense * dense_layer(shape) + shape.dim;
  return {others + num_moe * moe.all + shape.num_mtp_modules * mtp.all,
          others + num_moe * moe.active + shape.num_mtp_modules * mtp.active};
}

}  // namespace

int64_t MlaShape::num_parameters(int64_t dim) const {
  const int64_t queries = num_heads * key_dim();
  const int64_t of_queries = q_rank == 0 ? dim * queries : dim * q_rank + q_rank + q_rank * queries;
  const int64_t of_keys_and_values =
      dim * (kv_rank + rope_dim) + kv_rank + kv_rank * num_heads * (nope_dim + value_dim);
  return of_queries + of_keys_and_values + num_heads * value_dim * dim;
}

int64_t MoeShape::num_parameters(int64_t dim) const {
  return num_experts * dim + (num_experts + num_shared) * 3 * dim * ffn_dim;
}

int64_t MoeShape::num_active_parameters(int64_t dim) const {
  return num_experts * dim + (experts_per_token + num_shared) * 3 * dim * ffn_dim;
}

int64_t DeepseekV3Shape::num_parameters() const {
  return model(*this).all + 2 * vocab_size * dim;
}

double DeepseekV3Shape::flops_per_token(int64_t seq_len) const {
  const int64_t products = model(*this).active + (1 + num_mtp_modules) * vocab_size * dim;
  const int64_t widths = attention.num_heads * (attention.key_dim() + attention.value_dim);
  return 6.0 * static_cast<double>(products) +
         6.0 * static_cast<double>((num_layers + num_mtp_modules) * widths * seq_len);
}

std::vector<std::string> deepseek_v3_flavor_names() {
  std::vector<std::string> names;
  for (const DeepseekV3Shape& shape : shapes()) {
    names.push_back(shape.flavor);
  }
  return names;
}

DeepseekV3Shape deepseek_v3_shape(std::string_view flavor) {
  std::string known;
  for (const DeepseekV3Shape& shape : shapes()) {
    if (shape.flavor == flavor) {
      return shape;
    }
    known += (known.empty() ? "" : ", ") + shape.flavor;
  }
  throw UsageError("--model.flavor: found \"" + std::string(flavor) +
                   "\", allowed is one of: " + known);
}

}  // namespace swapline::trainer
