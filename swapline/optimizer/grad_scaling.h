// What torch.amp.GradScaler tells an optimizer.
#pragma once

#include <ATen/core/Tensor.h>

namespace swapline {

// Float scalars on a device of the parameters, or undefined. With grad_scale the update divides
// gradients by it first; where found_inf is not 0 it changes nothing, and counts for no step. The
// host never reads them. Needs the fused kernel.
struct GradScaling {
  at::Tensor grad_scale = {};
  at::Tensor found_inf = {};

  bool is_used() const { return grad_scale.defined() || found_inf.defined(); }
};

}  // namespace swapline
