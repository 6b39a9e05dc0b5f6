// The smallest use of layer-input swap: LayerInputs::recompute around each layer.
#include "sim/torch/sim.h"
#include "swapline/swapline.h"

#include <cstdio>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

int main() {
  swapline::sim::configure({.spec = swapline::sim::preset("tiny")});
  const c10::Device device = swapline::sim::device();
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < 4; ++layer) {
    weights.push_back((at::randn({256, 256}, device) * 0.05).set_requires_grad(true));
  }
  const at::Tensor x = at::randn({64, 256}, device).set_requires_grad(true);

  // [quick start
  auto context = std::make_shared<swapline::SwapContext>(device);
  swapline::LayerInputOptions options;
  options.num_layers = 4;
  swapline::LayerInputs inputs(context, options);

  at::Tensor h = x * 1;
  for (const at::Tensor& w : weights) {
    h = inputs.recompute([w](const at::Tensor& in) { return in + at::gelu(at::mm(in, w)); }, h);
  }
  h.square().mean().backward();
  // quick start]

  // [statistics
  const swapline::LayerInputStats stats = inputs.stats();
  std::printf("out %ld, back %ld, recalled %ld, kept %ld, misses %ld\n",
              static_cast<long>(stats.num_swapped_out),
              static_cast<long>(stats.num_swapped_in),
              static_cast<long>(stats.num_recalls),
              static_cast<long>(stats.num_kept_on_device),
              static_cast<long>(stats.num_prefetch_misses));
  // statistics]

  // [micro-batches
  std::vector<at::Tensor> losses;
  for (int64_t id = 0; id < 3; ++id) {
    inputs.begin_microbatch(id);
    at::Tensor each = x * static_cast<double>(id + 1);
    for (const at::Tensor& w : weights) {
      each = inputs.recompute([w](const at::Tensor& in) { return at::mm(in, w).tanh(); }, each);
    }
    losses.push_back(each.sum());
  }
  for (int64_t id = 0; id < 3; ++id) {
    inputs.prefetch(id);  // one slot ahead of its backward, if the schedule can
    losses[id].backward();
  }
  // micro-batches]

  // [recompute ahead
  inputs.begin_microbatch(3);
  at::Tensor last = x * 1;
  for (const at::Tensor& w : weights) {
    last = inputs.recompute([w](const at::Tensor& in) { return at::mm(in, w).tanh(); }, last);
  }
  inputs.recompute_ahead(3);  // in a bubble, while the gradient is still on its way
  last.sum().backward();
  // recompute ahead]
  const bool is_right = stats.num_prefetch_misses == 0 && stats.num_swapped_out == 3 &&
                        swapline::sim::simulator().num_races() == 0;
  return is_right ? 0 : 1;
}
