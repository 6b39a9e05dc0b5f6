// Runs a model's layers as the configuration says: kept or recomputed, alone or in blocks, their
// inputs on the device or in host memory.
#pragma once

#include "swapline/layer_input/layer_inputs.h"
#include "swapline/swap/swap_context.h"
#include "trainer/config.h"
#include "trainer/llama3.h"
#include "trainer/summary.h"

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

class LayerRunner {
 public:
  // `context`: of the device; nullptr for one without a second memory, where all layers are kept.
  LayerRunner(const Config& config, int64_t num_layers, std::shared_ptr<SwapContext> context);

  // Forward through `layers` in turn. hidden_states: [B, T, D]; pass the only handle, so that it
  // can be let go of.
  at::Tensor run(const std::vector<LayerFunction>& layers, at::Tensor hidden_states);

  LayerInputSummary summary(int64_t num_steps) const;

 private:
  ActivationCheckpointConfig config_;
  std::shared_ptr<SwapContext> context_;
  size_t num_recomputed_layers_ = 0;
  std::unique_ptr<LayerInputs> inputs_;  // nullptr: nothing is recomputed
};

}  // namespace swapline::trainer
