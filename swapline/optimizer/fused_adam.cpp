// Batches by group and dtype, and the call of the kernel.
#include "swapline/optimizer/fused_adam.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/as_strided.h>

namespace swapline::detail {

void FusedAdam::add(size_t group, AdamOperands operands) {
  const at::ScalarType dtype = operands.param.scalar_type();
  auto batch = std::find_if(batches_.begin(), batches_.end(), [&](const auto& candidate) {
    return candidate.group == group && candidate.dtype == dtype;
  });
  if (batch == batches_.end()) {
    batch = batches_.insert(batch, Batch{group, dtype, {}, {}, {}, {}});
    batch->states.resize(3);
  }
  batch->params.push_back(std::move(operands.param));
  batch->grads.push_back(std::move(operands.grad));
  for (size_t i = 0; i < operands.states.size(); ++i) {
    batch->states[i].push_back(std::move(operands.states[i]));
  }
  batch->steps.push_back(std::move(operands.step));
}

void FusedAdam::launch(const std::vector<AdamSettings>& groups) {
  std::vector<Batch> batches = std::exchange(batches_, {});
  for (const Batch& batch : batches) {
    const AdamSettings& settings = groups[batch.group];
    const auto call = [&](auto kernel) {
      kernel(batch.params,
             batch.grads,
             batch.states[0],
             batch.states[1],
             settings.amsgrad ? batch.states[2] : std::vector<at::Tensor>(),
             batch.steps,
             settings.lr,
             settings.beta1,
             settings.beta2,
             settings.weight_decay,
             settings.eps,
             settings.amsgrad,
             settings.maximize,
             std::optional<at::Tensor>(),
             std::optional<at::Tensor>());
    };
    if (settings.decoupled) {
      call([](const auto&... args) { at::_fused_adamw_(args...); });
    } else {
      call([](const auto&... args) { at::_fused_adam_(args...); });
    }
    ++num_launches_;
  }
}

at::Tensor flat_part(const at::Tensor& dense, int64_t first, int64_t num) {
  return at::as_strided(dense, {num}, {1}, dense.storage_offset() + first);
}

}  // namespace swapline::detail
