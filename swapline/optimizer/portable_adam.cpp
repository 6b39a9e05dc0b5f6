// In place throughout: the copies into scratch stand for torch's out-of-place results.
#include "swapline/optimizer/portable_adam.h"

#include <cmath>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_neg.h>
#include <ATen/ops/_foreach_sqrt.h>

namespace swapline::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

bool changes_grads(const AdamSettings& settings) {
  return settings.maximize || (settings.weight_decay != 0 && !settings.decoupled);
}

Tensors copies_of(const Tensors& tensors, Scratch& scratch) {
  Tensors copies;
  copies.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    copies.push_back(scratch.take(tensor.scalar_type(), tensor.numel()));
  }
  at::_foreach_copy_(copies, tensors);
  return copies;
}

}  // namespace

int num_portable_vectors(const AdamSettings& settings, bool owns_grads) {
  return 1 + (changes_grads(settings) && !owns_grads ? 1 : 0);
}

void portable_adam(const AdamBatch& batch, const AdamSettings& settings, Scratch& scratch) {
  const Tensors& params = batch.params;
  const Tensors grads =
      changes_grads(settings) && !batch.owns_grads ? copies_of(batch.grads, scratch) : batch.grads;
  if (settings.maximize) {
    at::_foreach_neg_(grads);
  }
  if (settings.weight_decay != 0) {
    if (settings.decoupled) {
      at::_foreach_mul_(params, 1 - settings.lr * settings.weight_decay);
    } else {
      at::_foreach_add_(grads, params, settings.weight_decay);
    }
  }
  at::_foreach_lerp_(batch.exp_avgs, grads, at::Scalar(1 - settings.beta1));
  at::_foreach_mul_(batch.exp_avg_sqs, settings.beta2);
  at::_foreach_addcmul_(batch.exp_avg_sqs, grads, grads, at::Scalar(1 - settings.beta2));
  if (settings.amsgrad) {
    at::_foreach_maximum_(batch.max_exp_avg_sqs, batch.exp_avg_sqs);
  }

  std::vector<at::Scalar> step_sizes;
  std::vector<at::Scalar> roots;
  for (const double step : batch.step_numbers) {
    step_sizes.emplace_back(settings.lr / (1 - std::pow(settings.beta1, step)) * -1);
    roots.emplace_back(std::pow(1 - std::pow(settings.beta2, step), 0.5));
  }
  const Tensors denominators =
      copies_of(settings.amsgrad ? batch.max_exp_avg_sqs : batch.exp_avg_sqs, scratch);
  at::_foreach_sqrt_(denominators);
  at::_foreach_div_(denominators, roots);
  at::_foreach_add_(denominators, at::Scalar(settings.eps));
  at::_foreach_addcdiv_(params, batch.exp_avgs, denominators, step_sizes);
}

}  // namespace swapline::detail
