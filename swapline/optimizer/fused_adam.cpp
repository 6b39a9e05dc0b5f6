// The dispatcher's answer, and the call.
#include "swapline/optimizer/fused_adam.h"

#include <optional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/core/TensorOptions.h>

namespace swapline::detail {

bool has_fused_adam(c10::Device device, bool decoupled) {
  const auto op = c10::Dispatcher::singleton().findSchema(
      {decoupled ? "aten::_fused_adamw_" : "aten::_fused_adam_", ""});
  return op && op->hasKernelForDispatchKey(at::TensorOptions(device).computeDispatchKey());
}

void fused_adam(const AdamBatch& batch, const AdamSettings& settings, const GradScaling& scaling) {
  const auto optional = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
  };
  const auto call = [&](const auto& lr, auto kernel) {
    kernel(batch.params,
           batch.grads,
           batch.exp_avgs,
           batch.exp_avg_sqs,
           batch.max_exp_avg_sqs,
           batch.steps,
           lr,
           settings.beta1,
           settings.beta2,
           settings.weight_decay,
           settings.eps,
           settings.amsgrad,
           settings.maximize,
           optional(scaling.grad_scale),
           optional(scaling.found_inf));
  };
  const auto call_either = [&](const auto& lr) {
    if (settings.decoupled) {
      call(lr, [](const auto&... args) { at::_fused_adamw_(args...); });
    } else {
      call(lr, [](const auto&... args) { at::_fused_adam_(args...); });
    }
  };
  settings.lr_tensor.defined() ? call_either(settings.lr_tensor) : call_either(settings.lr);
}

}  // namespace swapline::detail
