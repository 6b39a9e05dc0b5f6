// Multi-head latent attention, and the norm that runs as a part of a layer. Shapes: B sequences, T
// tokens, D = dim, H heads; R = width of the compressed keys and values, Q of the queries.
#pragma once

#include "trainer/models/blocks.h"
#include "trainer/models/deepseek_v3_shape.h"
#include "trainer/models/layer.h"

#include <string>

namespace swapline::trainer {

// RMS norm over the last dimension.
at::Tensor run_norm(const at::Tensor& x,
                    const at::Tensor& weight,
                    double eps,
                    const PartRunner& parts);

struct Mla {
  MlaShape shape;
  double norm_eps = 0;
  Rope rope;
  at::Tensor wq;                     // [H*key_dim, D], undefined where queries are compressed
  at::Tensor wq_a, q_norm, wq_b;     // [Q, D], [Q], [H*key_dim, Q], undefined where they are not
  at::Tensor wkv_a, kv_norm, wkv_b;  // [R+rope_dim, D], [R], [H*(nope_dim+value_dim), R]
  at::Tensor wo;                     // [D, H*value_dim]

  // [B, T, D] -> [B, T, D]
  at::Tensor forward(const at::Tensor& x, const PartRunner& parts) const;
};

// Parameters called `prefix`wq.weight and so on. `std_out`: of the matrix that leads out.
Mla make_mla(const DeepseekV3Shape& shape,
             const std::string& prefix,
             double std_out,
             const Rope& rope,
             Device& device,
             ParameterFactory& parameters);

}  // namespace swapline::trainer
