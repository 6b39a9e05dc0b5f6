#include "tests/optimizer/muon_reference.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

namespace swapline::testing {
namespace {

at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& like) {
  return at::empty_strided(like.sizes(), like.strides(), tensor.options().requires_grad(false))
      .copy_(tensor);
}

// [m, n], or [E, m, n] with the batched operators.
at::Tensor orthogonal(const at::Tensor& matrix, const MuonSettings& s) {
  const bool is_tall = matrix.size(-2) > matrix.size(-1);
  const bool is_one = matrix.dim() == 2;
  at::Tensor x = matrix.to(at::kBFloat16, /*non_blocking=*/false, /*copy=*/true);
  if (is_tall) {
    x = x.mT();
  }
  const std::vector<int64_t> dims = {1, 2};
  const at::Tensor norm =
      is_one ? at::linalg_vector_norm(x)
             : at::linalg_vector_norm(x, 2, at::OptionalIntArrayRef(dims), /*keepdim=*/true);
  x.div_(norm.clamp(s.eps));
  for (int64_t step = 0; step < s.ns_steps; ++step) {
    const bool is_late = s.hybrid_ns && step >= 8;
    const double a = is_late ? 2 : s.ns_coefficients[0];
    const double b = is_late ? -1.5 : s.ns_coefficients[1];
    const double c = is_late ? 0.5 : s.ns_coefficients[2];
    if (is_one) {
      const at::Tensor gram = at::mm(x, x.t());
      x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a);
    } else {
      const at::Tensor gram = at::bmm(x, x.mT());
      x = at::baddbmm(x, at::baddbmm(gram, gram, gram, b, c), x, a);
    }
  }
  return is_tall ? x.mT() : x;
}

void update(const at::Tensor& param,
            const at::Tensor& grad,
            const at::Tensor& momentum,
            const MuonSettings& s) {
  momentum.lerp_(grad, 1 - s.momentum);
  const at::Tensor direction =
      orthogonal(s.nesterov ? at::lerp(grad, momentum, s.momentum) : momentum, s);
  const auto m = static_cast<double>(param.size(-2));
  const auto n = static_cast<double>(param.size(-1));
  const double ratio = s.lr_rule == MuonLrRule::kOriginal ? std::sqrt(std::max(1.0, m / n))
                                                          : 0.2 * std::sqrt(std::max(m, n));
  param.mul_(at::scalar_tensor(1 - s.lr * s.weight_decay, at::kDouble));
  param.add_(direction, -(s.lr * ratio));
}

}  // namespace

MuonReference::MuonReference(const MuonGroup& group) : group_(group) {
  for (const at::Tensor& param : group_.params) {
    entries_.push_back({laid_out_like(param.detach(), param), {}});
  }
}

void MuonReference::step() {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!group_.params[i].grad().defined()) {
      continue;
    }
    const at::Tensor grad = laid_out_like(group_.params[i].grad(), entry.param);
    if (!entry.momentum.defined()) {
      entry.momentum = at::zeros_like(grad);
    }
    if (entry.param.numel() > 0) {
      update(entry.param, grad, entry.momentum, group_.settings);
    }
  }
}

std::map<std::string, at::Tensor> MuonReference::snapshot(size_t first) const {
  std::map<std::string, at::Tensor> tensors;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const std::string name = "param" + std::to_string(first + i);
    tensors[name] = entries_[i].param.cpu();
    if (entries_[i].momentum.defined()) {
      tensors[name + ".momentum_buffer"] = entries_[i].momentum.cpu();
    }
  }
  return tensors;
}

}  // namespace swapline::testing
