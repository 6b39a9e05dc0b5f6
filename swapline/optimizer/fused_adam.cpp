// The call, and its trials.
#include "swapline/optimizer/fused_adam.h"

#include "swapline/optimizer/host_detour.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

namespace swapline::detail {

namespace {

constexpr int64_t kNumTried = 64;

bool has_operator(c10::Device device, bool decoupled, const char* overload) {
  const auto op = c10::Dispatcher::singleton().findSchema(
      {decoupled ? "aten::_fused_adamw_" : "aten::_fused_adam_", overload});
  return op && op->hasKernelForDispatchKey(at::TensorOptions(device).computeDispatchKey());
}

// One parameter of ones, whose update makes it less.
AdamBatch some_numbers(c10::Device device) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  AdamBatch batch;
  batch.params = {at::ones({kNumTried}, options)};
  batch.grads = {at::ones({kNumTried}, options)};
  batch.exp_avgs = {at::zeros({kNumTried}, options)};
  batch.exp_avg_sqs = {at::zeros({kNumTried}, options)};
  batch.steps = {at::ones({}, options)};
  return batch;
}

template <typename Try>
bool succeeds(const Try& attempt) {
  try {
    return attempt();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

bool FusedAdamSupport::runs() {
  if (!runs_) {
    runs_ = has_operator(device_, decoupled_, "") &&
            succeeds([this] { return try_once(/*with_tensor_lr=*/false); });
  }
  return *runs_;
}

bool FusedAdamSupport::takes_tensor_lr() {
  if (!takes_tensor_lr_) {
    takes_tensor_lr_ = runs() && has_operator(device_, decoupled_, "tensor_lr") &&
                       succeeds([this] { return try_once(/*with_tensor_lr=*/true); });
  }
  return *takes_tensor_lr_;
}

bool FusedAdamSupport::scales() {
  if (!scales_) {
    scales_ = runs() && succeeds([this] { return try_scaling(); });
  }
  return *scales_;
}

bool FusedAdamSupport::try_once(bool with_tensor_lr) const {
  if (device_.is_cpu()) {
    return true;
  }
  AdamSettings settings;
  settings.decoupled = decoupled_;
  const AdamBatch batch = some_numbers(device_);
  if (with_tensor_lr) {
    settings.lr_tensor = at::full({}, settings.lr, batch.params[0].options());
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return !takes_host_detour([&] { fused_adam(batch, settings, {}); });
}

// Both at once: with found_inf set nothing may change; with a scale of 2 the first moment of a
// gradient of ones is half of what it would be.
bool FusedAdamSupport::try_scaling() const {
  AdamSettings settings;
  settings.decoupled = decoupled_;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device_);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const AdamBatch skipped = some_numbers(device_);
  const AdamBatch scaled = some_numbers(device_);
  const AdamBatch plain = some_numbers(device_);
  fused_adam(skipped, settings, {at::ones({}, options), at::ones({}, options)});
  fused_adam(scaled, settings, {at::full({}, 2., options), at::zeros({}, options)});
  fused_adam(plain, settings, {});
  // Zero where all is as it should be; so it is in a dry run, which has no numbers.
  const at::Tensor wrong = skipped.params[0].sub(1).abs().sum().add(
      scaled.exp_avgs[0].mul(2).sub(plain.exp_avgs[0]).abs().sum());
  return wrong.item<float>() == 0;
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
