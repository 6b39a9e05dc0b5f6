// Clipping of gradients by their total norm, on the device.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// Scales `gradients` in place so that their total 2-norm is at most `max_norm`, by the formula of
// torch.nn.utils.clip_grad_norm_. Returns the norm before, a scalar on their device; never waits.
// Requires: at least one gradient.
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& gradients, double max_norm);

}  // namespace swapline::trainer
