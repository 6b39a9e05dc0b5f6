// Convolution, forward and backward, by torch's CPU kernels: torch hands devices that it does not
// know the whole operator, not its parts.
#include "sim/torch/launch.h"

#include <array>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace swapline::sim {
namespace {

using at::Tensor;

// Every element of the weight meets every place of the result once for each sample; of a transposed
// convolution every place of the input.
double forward_flops(const Tensor& input,
                     const Tensor& result,
                     const Tensor& weight,
                     bool transposed) {
  const Tensor& places = transposed ? input : result;
  const double channels = static_cast<double>(places.size(1));
  return 2.0 * static_cast<double>(places.numel()) / channels * static_cast<double>(weight.numel());
}

Tensor forward(const Tensor& input,
               const Tensor& weight,
               const std::optional<Tensor>& bias,
               at::IntArrayRef stride,
               at::IntArrayRef padding,
               at::IntArrayRef dilation,
               bool transposed,
               at::IntArrayRef output_padding,
               int64_t groups) {
  Launch launch("aten::convolution_overrideable", input.device().index());
  const Tensor x = launch.in(input);
  const Tensor w = launch.in(weight);
  const std::optional<Tensor> b = bias ? std::optional(launch.in(*bias)) : std::nullopt;
  launch.begin();
  Tensor result;
  if (launch.is_dry()) {
    const auto shape =
        transposed ? at::native::conv_input_size(
                         x.sizes(), w.sizes(), padding, output_padding, stride, dilation, groups)
                   : at::native::conv_output_size(x.sizes(), w.sizes(), padding, stride, dilation);
    result = at::empty(shape, x.options());
  } else {
    result =
        at::convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups);
  }
  result = launch.out(result);
  launch.end(forward_flops(input, result, weight, transposed));
  return result;
}

std::tuple<Tensor, Tensor, Tensor> backward(const Tensor& grad_out,
                                            const Tensor& input,
                                            const Tensor& weight,
                                            at::IntArrayRef stride,
                                            at::IntArrayRef padding,
                                            at::IntArrayRef dilation,
                                            bool transposed,
                                            at::IntArrayRef output_padding,
                                            int64_t groups,
                                            std::array<bool, 3> wanted) {
  Launch launch("aten::convolution_backward_overrideable", input.device().index());
  const Tensor g = launch.in(grad_out);
  const Tensor x = launch.in(input);
  const Tensor w = launch.in(weight);
  launch.begin();
  const int64_t channels = grad_out.size(1);
  Tensor grad_x;
  Tensor grad_w;
  Tensor grad_b;
  if (launch.is_dry()) {
    grad_x = wanted[0] ? at::empty_like(x) : Tensor();
    grad_w = wanted[1] ? at::empty_like(w) : Tensor();
    grad_b = wanted[2] ? at::empty({channels}, g.options()) : Tensor();
  } else {
    std::tie(grad_x, grad_w, grad_b) = at::convolution_backward(g,
                                                                x,
                                                                w,
                                                                at::IntArrayRef(channels),
                                                                stride,
                                                                padding,
                                                                dilation,
                                                                transposed,
                                                                output_padding,
                                                                groups,
                                                                wanted);
  }
  grad_x = launch.out(grad_x);
  grad_w = launch.out(grad_w);
  grad_b = launch.out(grad_b);
  const double products = (wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0);
  launch.end(products * forward_flops(input, grad_out, weight, transposed));
  return {grad_x, grad_w, grad_b};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &forward);
  m.impl("convolution_backward_overrideable", &backward);
}

}  // namespace
}  // namespace swapline::sim
