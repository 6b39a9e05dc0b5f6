// The least that swaps both layer inputs and optimizer states: four layers on a simulated device.
#include "sim/torch/sim.h"
#include "swapline/swapline.h"

#include <cstdio>
#include <memory>
#include <vector>

#include <ATen/ATen.h>

int main() {
  const c10::Device device = swapline::sim::device();
  swapline::sim::configure({.spec = swapline::sim::preset("tiny")});

  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < 4; ++layer) {
    weights.push_back((at::randn({256, 256}, device) * 0.05).set_requires_grad(true));
  }
  const at::Tensor x = at::randn({64, 256}, device);

  // [readme
  auto context = std::make_shared<swapline::SwapContext>(device);
  swapline::LayerInputs inputs(context, {.num_layers = 4});
  swapline::AdamOptions options;
  options.swap_optimizer_times = 16;
  swapline::Adam optimizer(context, {{.params = weights}}, options);
  for (int step = 1; step <= 10; ++step) {
    at::Tensor h = x;
    for (const at::Tensor& w : weights) {
      h = inputs.recompute([w](const at::Tensor& in) { return in + at::gelu(at::mm(in, w)); }, h);
    }
    const at::Tensor loss = h.square().mean();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    std::printf("step %2d  loss %.5f\n", step, loss.item<float>());
  }
  // readme]
  optimizer.drain();
  std::printf("layer inputs out %zu bytes, states on the device now %zu bytes, races %ld\n",
              inputs.stats().bytes_out,
              optimizer.device_state_bytes(),
              static_cast<long>(swapline::sim::simulator().num_races()));
  return swapline::sim::simulator().num_races() == 0 ? 0 : 1;
}
