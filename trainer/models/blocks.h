// What transformer models have in common: rotary positions, SwiGLU, the head's loss.
#pragma once

#include "trainer/models/parameters.h"

#include <map>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

struct Rope {
  at::Tensor cos;  // [T, 1, E]
  at::Tensor sin;  // [T, 1, E], the first half negated
};

// Tables of rotary positions for heads of `head_dim` = E, one for each device that asks.
class RopeTables {
 public:
  RopeTables(int64_t head_dim, double theta, int64_t seq_len);
  const Rope& on(Device& device, const ParameterFactory& parameters);

 private:
  at::Tensor cos_;  // on the CPU
  at::Tensor sin_;
  std::map<const Device*, Rope> tables_;
};

// Rotates the pairs (x[i], x[i + E/2]). x: [B, T, H, E].
at::Tensor rotate(const at::Tensor& x, const Rope& rope);

// w2 (silu(w1 x) * (w3 x)). x: [..., D], w1 and w3: [F, D], w2: [D, F].
at::Tensor swiglu(const at::Tensor& x,
                  const at::Tensor& w1,
                  const at::Tensor& w2,
                  const at::Tensor& w3);

// Mean cross entropy of the tokens that `logits` = linear(x, head) foretell, a scalar in float32.
// x: [B, T, D], head: [V, D], targets: [B, T], of which -1 does not count.
at::Tensor head_loss(const at::Tensor& x, const at::Tensor& head, const at::Tensor& targets);

}  // namespace swapline::trainer
