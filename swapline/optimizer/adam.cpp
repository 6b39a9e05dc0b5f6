// The public face of the optimizer.
#include "swapline/optimizer/adam.h"

#include "swapline/optimizer/adam_impl.h"

#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace swapline {

Adam::Adam(std::shared_ptr<SwapContext> context, std::vector<AdamGroup> groups, AdamOptions options)
    : impl_(std::make_unique<Impl>(std::move(context), groups, options)) {}

Adam::~Adam() = default;

void Adam::step() {
  impl_->step();
}

void Adam::zero_grad(bool set_to_none) {
  if (impl_->context) {
    impl_->context->settle_done();
  }
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < impl_->params.size(); ++i) {
    at::Tensor& grad = impl_->params[i].tensor.mutable_grad();
    if (!grad.defined()) {
      continue;
    }
    if (set_to_none) {
      grad.reset();
    } else {
      grad.detach_();
      grad.zero_();
    }
  }
}

void Adam::prefetch() {
  if (!impl_->pipeline) {
    return;
  }
  impl_->check_usable();
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  impl_->pipeline->prefetch(impl_->chunks_where(
      [&](size_t param) { return impl_->params[param].tensor.requires_grad(); }));
}

void Adam::drain() {
  if (impl_->pipeline) {
    impl_->pipeline->drain();
  }
}

size_t Adam::num_groups() const {
  return impl_->settings.size();
}

AdamSettings& Adam::settings(size_t group) {
  return impl_->settings.at(group);
}

std::vector<at::Tensor> Adam::params(size_t group) const {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < impl_->params.size(); ++i) {
    if (impl_->params[i].group == group) {
      tensors.push_back(impl_->params[i].tensor);
    }
  }
  return tensors;
}

std::map<std::string, at::Tensor> Adam::state(const at::Tensor& param) {
  drain();
  const size_t index = impl_->params.index_of(param);
  const auto& entry = impl_->params[index];
  std::map<std::string, at::Tensor> states;
  if (!entry.has_state) {
    return states;
  }
  const bool is_on_host = impl_->host.has_value();
  const auto rows = impl_->rows(index);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = static_cast<int>(i);
    at::Tensor& state = states[detail::row_name(row, impl_->num_moments(index))];
    if (param.numel() == 0) {
      const auto options = param.options().requires_grad(false).dtype(rows[i]);
      state = at::empty_strided(
          param.sizes(), param.strides(), is_on_host ? options.device(at::kCPU) : options);
    } else if (is_on_host) {
      state = impl_->host->tensor(
          static_cast<int64_t>(index), row, param.sizes(), param.strides(), rows[i]);
    } else {
      state = impl_->resident.of(index, param, rows)[i];
    }
  }
  states["step"] = impl_->params.step_tensor(index);
  return states;
}

AdamStats Adam::stats() const {
  AdamStats stats;
  stats.num_launches = impl_->update.num_launches();
  if (!impl_->pipeline) {
    stats.state_bytes = impl_->resident.bytes();
    return stats;
  }
  const auto& pipeline = *impl_->pipeline;
  stats.num_chunks = static_cast<int64_t>(pipeline.chunks().size());
  stats.num_slots = impl_->options.num_slots;
  stats.slot_bytes = pipeline.slot_bytes();
  stats.arena_bytes = static_cast<size_t>(stats.num_slots) * stats.slot_bytes;
  stats.scratch_bytes = impl_->planned_scratch_bytes;
  stats.state_bytes = impl_->host->state_bytes();
  stats.kept_bytes = pipeline.kept_bytes();
  stats.num_copies_in = pipeline.num_copies_in();
  stats.num_copies_out = pipeline.num_copies_out();
  stats.num_shortages = pipeline.slots().num_shortages();
  return stats;
}

size_t Adam::device_state_bytes() const {
  if (!impl_->pipeline) {
    return impl_->resident.bytes();
  }
  impl_->context->settle_done();
  return impl_->pipeline->held_bytes();
}

std::vector<OptimizerStepTimes> Adam::take_step_times() {
  return impl_->pipeline ? impl_->pipeline->timer().take() : std::vector<OptimizerStepTimes>();
}

}  // namespace swapline
