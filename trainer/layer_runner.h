// Runs a model's layers on one device as the configuration says: kept or recomputed, alone, in
// blocks or in parts, their inputs on the device or in host memory.
#pragma once

#include "swapline/layer_input/layer_inputs.h"
#include "swapline/swap/swap_context.h"
#include "trainer/config.h"
#include "trainer/models/layer.h"
#include "trainer/summary.h"

#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// How a device's layers are passed through.
struct LayerPasses {
  int64_t num_layers = 0;      // in one pass, those of MTP modules included
  bool is_whole_model = true;  // no stages: a pass's backward comes right behind its forward
};

class LayerRunner {
 public:
  // `context`: of the device; nullptr for one without a second memory, where all layers are kept.
  LayerRunner(const Config& config, LayerPasses passes, std::shared_ptr<SwapContext> context);
  ~LayerRunner();

  // Forward through `layers` in turn. hidden_states: [B, T, D]; pass the only handle, so that it
  // can be let go of.
  at::Tensor run(std::span<const LayerPtr> layers, at::Tensor hidden_states) const;

  // The inputs of recomputed layers; nullptr: nothing is recomputed as a whole.
  LayerInputs* inputs() const { return inputs_.get(); }

  LayerInputSummary summary(int64_t num_steps) const;

 private:
  at::Tensor run_block(std::span<const LayerPtr> layers, const at::Tensor& hidden_states) const;

  ActivationCheckpointConfig config_;
  std::unique_ptr<LayerInputs> inputs_;
  std::unique_ptr<PartRunner> parts_;
};

}  // namespace swapline::trainer
