// One call of recompute(): what its backward needs besides the input, and how the layer is run
// again from it. Inside layer_input/ only.
#pragma once

#include "swapline/layer_input/input_handle.h"
#include "swapline/layer_input/layer_inputs.h"
#include "swapline/layer_input/replay_state.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

struct LayerRun {
  // The layer's second run: leaves, and what the layer made of them with grad.
  struct Again {
    at::Tensor input;
    std::vector<at::Tensor> others;
    std::vector<at::Tensor> outputs;
  };

  LayerRun(LayerInputs::Layer layer,
           std::vector<at::Tensor> others,
           ReplayState state,
           HandlePtr handle);

  // Throws c10::Error when one of `others` was written in place since.
  void check_versions() const;
  // Takes the input for its backward, and runs the layer again unless that was done ahead.
  Again begin_backward();
  // Does it now, for the backward to come. Not when that is under way, over, or was done already.
  void run_ahead();

  LayerInputs::Layer layer;
  std::vector<at::Tensor> others;  // undefined ones included
  std::vector<uint32_t> versions;  // of `others`
  bool input_requires_grad = false;
  size_t num_outputs = 0;
  ReplayState state;
  HandlePtr handle;
  std::optional<Again> ahead;

 private:
  Again run_again(const at::Tensor& input) const;
};

}  // namespace swapline
