// A Llama-3-like model in plain ATen: RMSNorm, rotary positions, grouped-query attention, SwiGLU.
#pragma once

#include "trainer/models/llama3_shape.h"
#include "trainer/models/model.h"

#include <vector>

namespace swapline::trainer {

class Llama3 : public Model {
 public:
  // `parameters` makes the parameters, named as in the published checkpoints, and keeps them.
  Llama3(const Llama3Shape& shape,
         int64_t seq_len,
         const Placement& placement,
         ParameterFactory& parameters);

  at::Tensor embed(const at::Tensor& tokens) const override;
  const std::vector<LayerPtr>& layers() const override { return layers_; }
  at::Tensor loss(const at::Tensor& hidden_states,
                  const at::Tensor& targets,
                  const RunLayer& run_layer) const override;
  std::vector<TiedParameters> tied_parameters() const override { return tied_; }

 private:
  Llama3Shape shape_;
  at::Tensor embedding_;  // [V, D]
  std::vector<LayerPtr> layers_;
  at::Tensor norm_;  // [D]
  at::Tensor head_;  // [V, D]
  std::vector<TiedParameters> tied_;
};

}  // namespace swapline::trainer
