// Casts in, the kernel, casts out; nothing of it where all dtypes are one.
#include "swapline/optimizer/adam_update.h"

#include "swapline/optimizer/portable_adam.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace swapline::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

bool casts_moments(const StateDtypes& dtypes) {
  return dtypes.moment != dtypes.work;
}

bool casts_grads(const StateDtypes& dtypes) {
  return dtypes.param != dtypes.work;
}

bool casts_params(const StateDtypes& dtypes) {
  return casts_grads(dtypes) && !dtypes.has_master;
}

// The operands can go into torch's fused kernel as they are.
bool is_plain(const StateDtypes& dtypes) {
  return !casts_moments(dtypes) && !casts_grads(dtypes) && !dtypes.has_master;
}

// All elements of a dense tensor in the order of its memory, as a vector.
at::Tensor flat(const at::Tensor& dense) {
  return at::as_strided(dense, {dense.numel()}, {1});
}

Tensors cast(const Tensors& tensors, at::ScalarType dtype, Scratch& scratch) {
  Tensors casts;
  casts.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    casts.push_back(scratch.take(dtype, tensor.numel()));
  }
  at::_foreach_copy_(casts, tensors);
  return casts;
}

}  // namespace

AdamUpdate::AdamUpdate(c10::Device device, AdamKernel kernel)
    : device_(device),
      kernel_(kernel),
      fused_adamw_(device, /*decoupled=*/true),
      fused_adam_(device, /*decoupled=*/false) {}

void AdamUpdate::check(const AdamSettings& settings) const {
  TORCH_CHECK(kernel_ != AdamKernel::kFused || is_fused(settings),
              "device ",
              device_,
              " has no ",
              settings.decoupled ? "_fused_adamw_" : "_fused_adam_",
              " of its own: set AdamOptions::kernel to kAuto or kPortable");
}

bool AdamUpdate::is_fused(const AdamSettings& settings) const {
  return kernel_ != AdamKernel::kPortable && support(settings).runs();
}

bool AdamUpdate::takes_tensor_lr(const AdamSettings& settings) const {
  return is_fused(settings) && support(settings).takes_tensor_lr();
}

bool AdamUpdate::scales(const AdamSettings& settings) const {
  return is_fused(settings) && support(settings).scales();
}

FusedAdamSupport& AdamUpdate::support(const AdamSettings& settings) const {
  return settings.decoupled ? fused_adamw_ : fused_adam_;
}

size_t AdamUpdate::scratch_bytes(const StateDtypes& dtypes,
                                 int num_moments,
                                 const AdamSettings& settings) const {
  int num_vectors = casts_moments(dtypes) ? num_moments : 0;
  num_vectors += casts_grads(dtypes) ? 1 : 0;
  num_vectors += casts_params(dtypes) ? 1 : 0;
  if (!is_fused(settings)) {
    num_vectors += num_portable_vectors(settings, casts_grads(dtypes));
  }
  return static_cast<size_t>(num_vectors) * c10::elementSize(dtypes.work);
}

void AdamUpdate::add(size_t group, const StateDtypes& dtypes, AdamOperands operands) {
  auto pending = std::find_if(pending_.begin(), pending_.end(), [&](const auto& candidate) {
    return candidate.group == group && candidate.dtypes.param == dtypes.param;
  });
  if (pending == pending_.end()) {
    pending = pending_.insert(pending, Pending{group, dtypes, {}, {}, {}, {}, {}, {}});
  }
  if (operands.master.defined()) {
    if (operands.is_master_new) {
      pending->new_masters.push_back(operands.master);
      pending->new_params.push_back(operands.param);
    }
    pending->masters.push_back(std::move(operands.master));
  }
  pending->params.push_back(std::move(operands.param));
  pending->batch.grads.push_back(std::move(operands.grad));
  for (size_t i = 0; i < operands.moments.size(); ++i) {
    pending->moments[i].push_back(std::move(operands.moments[i]));
  }
  pending->batch.steps.push_back(std::move(operands.step));
  pending->batch.step_numbers.push_back(operands.step_number);
}

void AdamUpdate::launch(const std::vector<AdamSettings>& groups,
                        const GradScaling& scaling,
                        Scratch& scratch) {
  std::vector<Pending> all = std::exchange(pending_, {});
  for (Pending& pending : all) {
    scratch.reset();  // the batch before is ahead of this one on the stream
    update(pending, groups[pending.group], scaling, scratch);
  }
}

void AdamUpdate::update(Pending& pending,
                        const AdamSettings& settings,
                        const GradScaling& scaling,
                        Scratch& scratch) {
  const StateDtypes& dtypes = pending.dtypes;
  AdamBatch& batch = pending.batch;
  const bool fused = is_fused(settings);
  if (!is_plain(dtypes) || !fused) {
    for (Tensors* tensors : {&pending.params,
                             &pending.masters,
                             &pending.new_masters,
                             &pending.new_params,
                             &batch.grads,
                             &pending.moments[0],
                             &pending.moments[1],
                             &pending.moments[2]}) {
      for (at::Tensor& tensor : *tensors) {
        tensor = flat(tensor);
      }
    }
  }
  if (!pending.new_masters.empty()) {
    at::_foreach_copy_(pending.new_masters, pending.new_params);
  }
  batch.params = dtypes.has_master      ? pending.masters
                 : casts_params(dtypes) ? cast(pending.params, dtypes.work, scratch)
                                        : pending.params;
  if (casts_grads(dtypes)) {
    batch.grads = cast(batch.grads, dtypes.work, scratch);
    batch.owns_grads = true;
  }
  Tensors* const kinds[] = {&batch.exp_avgs, &batch.exp_avg_sqs, &batch.max_exp_avg_sqs};
  const int num_kinds = settings.amsgrad ? 3 : 2;
  for (int i = 0; i < num_kinds; ++i) {
    *kinds[i] =
        casts_moments(dtypes) ? cast(pending.moments[i], dtypes.work, scratch) : pending.moments[i];
  }
  fused ? fused_adam(batch, settings, scaling) : portable_adam(batch, settings, scratch);
  ++num_launches_;
  for (int i = 0; i < num_kinds && casts_moments(dtypes); ++i) {
    at::_foreach_copy_(pending.moments[i], *kinds[i]);
  }
  if (casts_params(dtypes) || dtypes.has_master) {
    at::_foreach_copy_(pending.params, batch.params);
  }
}

}  // namespace swapline::detail
