// Memory's height while a layer's backward runs, for the learned lag. Inside layer_input/ only.
#pragma once

#include "swapline/layer_input/input_ledger.h"

#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

// `ledger` is told whenever a node of the graph behind `outputs` has run backward; without outputs,
// of the graph behind the node that runs now. Such a hook dies with its node.
void sample_memory(const std::vector<at::Tensor>& outputs, InputLedger& ledger);

}  // namespace swapline
