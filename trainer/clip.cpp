// Two fused launches a device, one for the norms and one for the scaling; norms and factor travel.
#include "trainer/clip.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace swapline::trainer {

at::Tensor clip_grad_norm(const std::vector<std::vector<at::Tensor>>& gradients,
                          const std::vector<GradientPlace>& counted,
                          double max_norm) {
  const c10::NoGradGuard no_grad;
  const c10::Device first = gradients.front().front().device();
  std::vector<std::vector<at::Tensor>> norms;
  for (const std::vector<at::Tensor>& on_device : gradients) {
    norms.push_back(at::_foreach_norm(on_device));
    if (on_device.front().device() != first) {
      const at::Tensor moved = at::stack(norms.back()).to(first, /*non_blocking=*/true);
      norms.back() = moved.unbind();
    }
  }
  std::vector<at::Tensor> ordered;
  for (const auto& [device, gradient] : counted) {
    ordered.push_back(norms[device][gradient]);
  }
  const at::Tensor total = at::linalg_vector_norm(at::stack(ordered), 2);
  // Multiplying by 1 changes no bit, so that clipping needs no look at the value from the host.
  const at::Tensor factor = at::clamp_max(max_norm / (total + 1e-6), 1.0);
  for (const std::vector<at::Tensor>& on_device : gradients) {
    const c10::Device device = on_device.front().device();
    at::_foreach_mul_(on_device,
                      device == first ? factor : factor.to(device, /*non_blocking=*/true));
  }
  return total;
}

at::Tensor clip_grad_norm(const std::vector<at::Tensor>& gradients, double max_norm) {
  std::vector<GradientPlace> counted;
  for (size_t i = 0; i < gradients.size(); ++i) {
    counted.emplace_back(0, i);
  }
  return clip_grad_norm({gradients}, counted, max_norm);
}

}  // namespace swapline::trainer
