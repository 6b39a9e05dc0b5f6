#include "tests/optimizer/reference.h"

#include <cmath>
#include <optional>
#include <utility>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace swapline::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& like) {
  return at::empty_strided(like.sizes(), like.strides(), tensor.options().requires_grad(false))
      .copy_(tensor);
}

at::Tensor flat(const at::Tensor& dense) {
  return at::as_strided(dense, {dense.numel()}, {1}, dense.storage_offset());
}

// torch/optim/adam.py, _multi_tensor_adam, not capturable.
void foreach_adam(const Tensors& params,
                  Tensors grads,
                  const Tensors (&states)[3],
                  double step,
                  const AdamSettings& s) {
  if (s.maximize) {
    grads = at::_foreach_neg(grads);
  }
  if (s.weight_decay != 0) {
    if (s.decoupled) {
      at::_foreach_mul_(params, 1 - s.lr * s.weight_decay);
    } else {
      grads = at::_foreach_add(grads, params, s.weight_decay);
    }
  }
  at::_foreach_lerp_(states[0], grads, at::Scalar(1 - s.beta1));
  at::_foreach_mul_(states[1], s.beta2);
  at::_foreach_addcmul_(states[1], grads, grads, at::Scalar(1 - s.beta2));
  const double correction1 = 1 - std::pow(s.beta1, step);
  const double correction2 = 1 - std::pow(s.beta2, step);
  if (s.amsgrad) {
    at::_foreach_maximum_(states[2], states[1]);
  }
  const Tensors roots = at::_foreach_sqrt(s.amsgrad ? states[2] : states[1]);
  at::_foreach_div_(roots, std::vector<at::Scalar>{std::pow(correction2, 0.5)});
  at::_foreach_add_(roots, at::Scalar(s.eps));
  at::_foreach_addcdiv_(params, states[0], roots, std::vector<at::Scalar>{s.lr / correction1 * -1});
}

void fused_adam(const Tensors& params,
                const Tensors& grads,
                const Tensors (&states)[3],
                double step,
                const AdamSettings& s) {
  const Tensors steps = {
      at::full({}, step, at::TensorOptions().dtype(at::kFloat).device(params[0].device()))};
  const auto call = [&](auto kernel) {
    kernel(params,
           grads,
           states[0],
           states[1],
           s.amsgrad ? states[2] : Tensors(),
           steps,
           s.lr,
           s.beta1,
           s.beta2,
           s.weight_decay,
           s.eps,
           s.amsgrad,
           s.maximize,
           std::optional<at::Tensor>(),
           std::optional<at::Tensor>());
  };
  s.decoupled ? call([](const auto&... args) { at::_fused_adamw_(args...); })
              : call([](const auto&... args) { at::_fused_adam_(args...); });
}

}  // namespace

Reference::Reference(const std::vector<AdamGroup>& groups, const AdamOptions& options)
    : groups_(groups), options_(options) {
  for (const auto& group : groups_) {
    for (const auto& param : group.params) {
      entries_[param.unsafeGetTensorImpl()].param = laid_out_like(param.detach(), param);
    }
  }
}

void Reference::step() {
  const c10::NoGradGuard no_grad;
  for (const auto& group : groups_) {
    std::map<const c10::TensorImpl*, bool> seen;
    for (const auto& param : group.params) {
      if (param.grad().defined() && !std::exchange(seen[param.unsafeGetTensorImpl()], true)) {
        update(entries_.at(param.unsafeGetTensorImpl()), param.grad(), group.settings);
      }
    }
  }
}

void Reference::update(Entry& entry, const at::Tensor& grad, const AdamSettings& settings) const {
  const at::Tensor& param = entry.param;
  const bool is_low = param.scalar_type() == at::kBFloat16 || param.scalar_type() == at::kHalf;
  const bool has_master = options_.master_weights && is_low;
  const auto updated = has_master ? at::kFloat : param.scalar_type();
  const auto moment = options_.state_dtype.value_or(updated);
  const auto work = c10::promoteTypes(updated, moment);
  if (entry.step == 0) {
    for (int i = 0; i < (settings.amsgrad ? 3 : 2); ++i) {
      entry.moments.push_back(at::zeros_like(param, param.options().dtype(moment)));
    }
    if (has_master) {
      entry.master = param.to(work);
    }
  }
  entry.step += 1;
  if (param.numel() == 0) {
    return;
  }
  const auto value = has_master ? flat(entry.master) : flat(param).to(work);
  Tensors states[3];
  for (size_t i = 0; i < entry.moments.size(); ++i) {
    states[i] = {flat(entry.moments[i]).to(work)};
  }
  const Tensors grads = {flat(laid_out_like(grad, param)).to(work)};
  options_.kernel == AdamKernel::kPortable
      ? foreach_adam({value}, grads, states, entry.step, settings)
      : fused_adam({value}, grads, states, entry.step, settings);
  for (size_t i = 0; i < entry.moments.size(); ++i) {
    flat(entry.moments[i]).copy_(states[i][0]);
  }
  flat(param).copy_(value);
}

std::map<std::string, at::Tensor> Reference::snapshot() const {
  std::map<std::string, at::Tensor> tensors;
  int number = 0;
  for (const auto& group : groups_) {
    for (const auto& param : group.params) {
      const Entry& entry = entries_.at(param.unsafeGetTensorImpl());
      const std::string name = "param" + std::to_string(number++);
      tensors[name] = entry.param.cpu();
      static constexpr const char* kNames[] = {".exp_avg", ".exp_avg_sq", ".max_exp_avg_sq"};
      for (size_t i = 0; i < entry.moments.size(); ++i) {
        tensors[name + kNames[i]] = entry.moments[i].cpu();
      }
      if (entry.step > 0) {
        tensors[name + ".step"] = at::full({}, entry.step);
      }
      if (entry.master.defined()) {
        tensors[name + ".master_param"] = entry.master.cpu();
      }
    }
  }
  return tensors;
}

}  // namespace swapline::testing
