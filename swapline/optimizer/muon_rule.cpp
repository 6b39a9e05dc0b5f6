// From a part of a parameter to its matrices, and what an update does to them.
#include "swapline/optimizer/muon_rule.h"

#include "swapline/optimizer/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/lerp.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace swapline::detail {
namespace {

// Matrices of one parameter are updated together up to here: enough to keep a device busy. A slot
// holds at least as much, and scratch of eight bytes an element.
constexpr int64_t kMostBatchElements = int64_t{1} << 23;

double adjusted_lr(const MuonSettings& settings, int64_t rows, int64_t columns) {
  const auto m = static_cast<double>(rows);
  const auto n = static_cast<double>(columns);
  const double ratio = settings.lr_rule == MuonLrRule::kOriginal ? std::sqrt(std::max(1.0, m / n))
                                                                 : 0.2 * std::sqrt(std::max(m, n));
  return settings.lr * ratio;
}

size_t update_bytes(at::ScalarType dtype, int64_t batch, int64_t rows, int64_t columns) {
  const auto padded = static_cast<size_t>(Scratch::padded(batch * rows * columns));
  const size_t lerped = dtype == at::kBFloat16 ? 0 : padded * c10::elementSize(dtype);
  return padded * c10::elementSize(at::kBFloat16) +
         std::max(lerped, newton_schulz_bytes(batch, rows, columns));
}

}  // namespace

void MuonRule::add_param(const ListedParam& param) {
  TORCH_CHECK(param.sizes.size() == 2 || param.sizes.size() == 3,
              param.name,
              " has sizes ",
              at::IntArrayRef(param.sizes),
              ", and Muon updates matrices: [m, n], or [E, m, n] for E of them. Give it to AdamW, "
              "in a group of Muon's `others`");
  Matrices matrices = {param.group, param.dtype, param.sizes, param.strides};
  if (matrices.count() > 1 && matrices.numel_of_one() > 0) {
    matrices.batch =
        std::clamp(kMostBatchElements / matrices.numel_of_one(), int64_t{1}, matrices.count());
  }
  params_.push_back(std::move(matrices));
}

void MuonRule::check(const GradScaling& scaling) const {
  for (const MuonSettings& settings : groups_->settings) {
    swapline::check(settings);
  }
  TORCH_CHECK(groups_->settings.empty() || !scaling.is_used(),
              "Muon has no grad_scale and found_inf: unscale the gradients and leave out the step "
              "where one of them is not finite");
}

std::vector<StateRow> MuonRule::rows(size_t param) const {
  return {{"momentum_buffer", params_[param].dtype}};
}

StateShape MuonRule::shape(size_t param) const {
  const Matrices& matrices = params_[param];
  StateShape shape;
  shape.numel = matrices.count() * matrices.numel_of_one();
  shape.item_bytes = c10::elementSize(matrices.dtype);
  shape.num_states = 1;
  const int64_t batch_elements = matrices.batch * matrices.numel_of_one();
  const bool may_be_cut = matrices.are_apart() && batch_elements % kSplitElements == 0;
  shape.split_elements = may_be_cut ? batch_elements : shape.numel;
  return shape;
}

size_t MuonRule::scratch_bytes(std::span<const Part> parts) const {
  size_t bytes = 0;
  for (const Part& part : parts) {
    const Matrices& matrices = params_[part.param];
    const int64_t batch = std::min(matrices.batch, part.num_elements / matrices.numel_of_one());
    bytes =
        std::max(bytes, update_bytes(matrices.dtype, batch, matrices.rows(), matrices.columns()));
  }
  return bytes;
}

void MuonRule::launch(const GradScaling& /*scaling*/, Scratch& scratch) {
  for (const Operands& operands : std::exchange(pending_, {})) {
    update(operands, scratch);
  }
}

void MuonRule::update(const Operands& operands, Scratch& scratch) {
  const Matrices& matrices = params_[operands.param];
  const bool is_one = matrices.sizes.size() == 2;
  std::vector<int64_t> sizes = matrices.sizes;
  if (!is_one) {
    sizes[0] = operands.tensor.numel() / matrices.numel_of_one();
  }
  const auto all = [&](const at::Tensor& tensor) {
    return tensor.as_strided(sizes, matrices.strides);
  };
  const at::Tensor param = all(operands.tensor);
  const at::Tensor grad = all(operands.grad);
  const at::Tensor momentum = all(operands.states[0]);
  if (is_one) {
    update_batch(matrices, param, grad, momentum, scratch);
    return;
  }
  for (int64_t first = 0; first < sizes[0]; first += matrices.batch) {
    const int64_t num = std::min(matrices.batch, sizes[0] - first);
    update_batch(matrices,
                 param.narrow(0, first, num),
                 grad.narrow(0, first, num),
                 momentum.narrow(0, first, num),
                 scratch);
  }
}

void MuonRule::update_batch(const Matrices& matrices,
                            const at::Tensor& param,
                            const at::Tensor& grad,
                            const at::Tensor& momentum,
                            Scratch& scratch) {
  const MuonSettings& settings = groups_->settings[matrices.group];
  scratch.reset();  // the batch before is ahead of this one on the stream
  // Laid out like the momentum where that has no gaps.
  const auto take = [&](at::ScalarType dtype) {
    at::Tensor taken = scratch.take(dtype, momentum.numel());
    return momentum.is_non_overlapping_and_dense()
               ? taken.as_strided(momentum.sizes(), momentum.strides())
               : taken.view(momentum.sizes());
  };
  momentum.lerp_(grad, 1 - settings.momentum);
  at::Tensor x = take(at::kBFloat16);
  if (!settings.nesterov) {
    x.copy_(momentum);
  } else if (momentum.scalar_type() == at::kBFloat16) {
    at::lerp_out(x, grad, momentum, settings.momentum);
  } else {
    const int64_t used_bytes = scratch.used_bytes();
    at::Tensor lerped = take(momentum.scalar_type());
    at::lerp_out(lerped, grad, momentum, settings.momentum);
    x.copy_(lerped);
    scratch.reset(used_bytes);
  }
  const at::Tensor update = newton_schulz(x, settings, scratch);
  // By a tensor, as Python does it: the overload for scalars rounds them to bfloat16 first.
  param.mul_(at::scalar_tensor(1 - settings.lr * settings.weight_decay, at::kDouble));
  param.add_(update, -adjusted_lr(settings, matrices.rows(), matrices.columns()));
  ++num_launches_;
}

}  // namespace swapline::detail
