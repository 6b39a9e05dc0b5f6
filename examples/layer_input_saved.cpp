// Saved inputs: one micro-batch's forward in pieces, another's backward between them.
#include "sim/torch/sim.h"
#include "swapline/swapline.h"

#include <cstdio>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

int main() {
  swapline::sim::configure({.spec = swapline::sim::preset("tiny")});
  const c10::Device device = swapline::sim::device();
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < 4; ++layer) {
    weights.push_back((at::randn({256, 256}, device) * 0.05).set_requires_grad(true));
  }
  auto context = std::make_shared<swapline::SwapContext>(device);
  swapline::LayerInputs inputs(context, {});

  // Micro-batch 0 forward: its layers' inputs, each linked to the one before.
  std::vector<swapline::SavedInput> first;
  at::Tensor h = at::randn({64, 256}, device);
  for (const at::Tensor& w : weights) {
    const c10::NoGradGuard no_grad;
    first.push_back(inputs.save(h, first.empty() ? nullptr : &first.back()));
    h = at::gelu(at::mm(h, w));
  }
  first.back().layer_done();

  // Micro-batch 1 forward, micro-batch 0 backward between the pieces of each layer.
  at::Tensor gradient = at::ones_like(h);
  std::vector<swapline::SavedInput> second;
  h = at::randn({64, 256}, device);
  // [saved inputs
  for (size_t i = 0; i < weights.size(); ++i) {
    second.push_back(inputs.save(h, second.empty() ? nullptr : &second.back()));
    const at::Tensor product = at::mm(h, weights[i].detach());  // a first piece of the forward
    {
      const at::Tensor& w = weights[weights.size() - 1 - i];
      const at::Tensor input = first.back().take().set_requires_grad(true);
      at::gelu(at::mm(input, w)).backward(gradient);
      gradient = input.grad();
    }
    first.back().finish();
    first.pop_back();
    h = at::gelu(product);  // the rest of the forward
  }
  second.back().layer_done();
  // saved inputs]

  for (size_t i = weights.size(); i-- > 0; second.pop_back()) {
    const at::Tensor input = second.back().take().set_requires_grad(true);
    at::gelu(at::mm(input, weights[i])).backward(gradient);
    gradient = input.grad();
  }
  const swapline::LayerInputStats stats = inputs.stats();
  std::printf("out %ld, back %ld, recalled %ld, most resident %ld\n",
              static_cast<long>(stats.num_swapped_out),
              static_cast<long>(stats.num_swapped_in),
              static_cast<long>(stats.num_recalls),
              static_cast<long>(stats.peak_resident_inputs));
  const bool is_right =
      stats.peak_resident_inputs <= 2 && swapline::sim::simulator().num_races() == 0;
  return is_right ? 0 : 1;
}
