// Clipping of gradients by their total norm, on the devices.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// (device, gradient): a place in a list of gradients for each device.
using GradientPlace = std::pair<size_t, size_t>;

// Scales the gradients in place so that the total 2-norm of those that `counted` names, in that
// order, is at most `max_norm`, by the formula of torch.nn.utils.clip_grad_norm_. Returns the norm
// before, a scalar on the first device; the host never waits.
// Requires: at least one gradient on each device, and one that counts.
at::Tensor clip_grad_norm(const std::vector<std::vector<at::Tensor>>& gradients,
                          const std::vector<GradientPlace>& counted,
                          double max_norm);
// The same for gradients of one device that all count.
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& gradients, double max_norm);

}  // namespace swapline::trainer
