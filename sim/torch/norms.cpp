// RMS norm as one kernel, forward and backward. torch has no CPU kernel for it, so the arithmetic
// is written out here in CPU operators, in fp32 as real kernels do it.
#include "sim/torch/launch.h"
#include "sim/torch/sim.h"

#include <limits>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

namespace swapline::sim {
namespace {

using at::Tensor;

std::vector<int64_t> last_dims(size_t count) {
  std::vector<int64_t> dims;
  for (size_t i = 0; i < count; ++i) {
    dims.push_back(-1 - static_cast<int64_t>(i));
  }
  return dims;
}

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps)
std::tuple<Tensor, Tensor> rms_norm(const Tensor& input,
                                    at::IntArrayRef normalized_shape,
                                    const std::optional<Tensor>& weight,
                                    std::optional<double> eps) {
  Launch launch("aten::_fused_rms_norm", input.device().index());
  const Tensor x = launch.in(input);
  const Tensor w = weight ? launch.in(*weight) : Tensor();
  launch.begin();
  auto outer = input.sizes().vec();
  for (size_t i = 0; i < normalized_shape.size(); ++i) {
    outer[outer.size() - 1 - i] = 1;
  }
  Tensor y;
  Tensor rstd;
  if (launch.is_dry()) {
    y = at::empty_like(x);
    rstd = at::empty(outer, x.options().dtype(at::kFloat));
  } else {
    const Tensor x32 = x.to(at::kFloat);
    const double epsilon = eps.value_or(std::numeric_limits<float>::epsilon());
    rstd = at::rsqrt(x32.square().mean(last_dims(normalized_shape.size()), true).add_(epsilon));
    y = x32.mul(rstd);
    if (w.defined()) {
      y.mul_(w);
    }
    y = y.to(x.scalar_type());
  }
  y = launch.out(y);
  rstd = launch.out(rstd);
  launch.end();
  return {y, rstd};
}

// The derivative of each step of the forward in turn, in the order and form in which autograd takes
// them on the CPU: bits depend on it.
std::tuple<Tensor, Tensor> rms_norm_backward(const Tensor& grad_out,
                                             const Tensor& input,
                                             at::IntArrayRef normalized_shape,
                                             const Tensor& rstd,
                                             const std::optional<Tensor>& weight,
                                             std::array<bool, 2> wanted) {
  Launch launch("aten::_fused_rms_norm_backward", input.device().index());
  const Tensor dy = launch.in(grad_out);
  const Tensor x = launch.in(input);
  const Tensor r = launch.in(rstd);
  const bool has_weight = weight && weight->defined();
  const Tensor w = has_weight ? launch.in(*weight) : Tensor();
  launch.begin();
  Tensor dx;
  Tensor dw;
  if (launch.is_dry()) {
    dx = wanted[0] ? at::empty_like(x) : Tensor();
    dw = wanted[1] && has_weight ? at::empty_like(w) : Tensor();
  } else {
    const Tensor x32 = x.to(at::kFloat);
    const Tensor dy32 = dy.to(at::kFloat);
    if (wanted[0]) {
      const Tensor scaled = has_weight ? dy32.mul(w) : dy32;  // of x * rstd
      const Tensor mean =
          scaled.mul(x32).sum(last_dims(normalized_shape.size()), true).mul(-0.5).mul(r.pow(3));
      const double count = static_cast<double>(c10::multiply_integers(normalized_shape));
      dx =
          scaled.mul(r).add_(mean.expand(x.sizes()).div(count).mul(x32.mul(2))).to(x.scalar_type());
    }
    if (wanted[1] && has_weight) {
      std::vector<int64_t> outer_dims;
      for (int64_t dim = 0; dim < x.dim() - static_cast<int64_t>(normalized_shape.size()); ++dim) {
        outer_dims.push_back(dim);
      }
      const Tensor product = dy32.mul(x32.mul(r));
      dw = (outer_dims.empty() ? product : product.sum(outer_dims)).to(w.scalar_type());
    }
  }
  dx = launch.out(dx);
  dw = launch.out(dw);
  launch.end();
  return {dx, dw};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_rms_norm", &rms_norm);
  m.impl("_fused_rms_norm_backward", &rms_norm_backward);
}

}  // namespace
}  // namespace swapline::sim
