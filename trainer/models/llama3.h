// A Llama-3-like model in plain ATen: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
// It comes in three parts so that whoever runs it decides how each layer runs:
//   model.loss(run(model.layers(), model.embed(tokens)), targets)
#pragma once

#include "trainer/llama3_shape.h"
#include "trainer/parameters.h"

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// From hidden states to hidden states, [B, T, D] both.
using LayerFunction = std::function<at::Tensor(const at::Tensor&)>;

class Llama3 {
 public:
  // `parameters` makes the parameters, named as in the published checkpoints, and keeps them.
  Llama3(const Llama3Shape& shape, int64_t seq_len, ParameterFactory& parameters);

  at::Tensor embed(const at::Tensor& tokens) const;  // [B, T] -> [B, T, D]
  // Valid also after the model is gone.
  const std::vector<LayerFunction>& layers() const { return layers_; }
  // Mean cross entropy, a scalar in float32. `hidden_states` [B, T, D], `targets` [B, T].
  at::Tensor loss(const at::Tensor& hidden_states, const at::Tensor& targets) const;

 private:
  Llama3Shape shape_;
  at::Tensor embedding_;  // [V, D]
  std::vector<LayerFunction> layers_;
  at::Tensor norm_;  // [D]
  at::Tensor head_;  // [V, D]
};

}  // namespace swapline::trainer
