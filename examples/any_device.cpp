// Both swaps on whatever device is named: any_device sim|cuda|npu|xpu.
#include "swapline/swapline.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace {

void train(const c10::Device device) {
  at::manual_seed(0);
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < 4; ++layer) {
    weights.push_back((at::randn({256, 256}) * 0.05).to(device).set_requires_grad(true));
  }
  const at::Tensor x = at::randn({64, 256}).to(device);

  auto context = std::make_shared<swapline::SwapContext>(device);
  swapline::LayerInputs inputs(context, {.num_layers = 4});
  swapline::AdamOptions options;
  options.swap_optimizer_times = 4;
  swapline::Adam optimizer(context, {{weights, {.lr = 3e-4}}}, options);
  for (int step = 1; step <= 5; ++step) {
    at::Tensor h = x;
    for (const at::Tensor& w : weights) {
      h = inputs.recompute([w](const at::Tensor& in) { return in + at::gelu(at::mm(in, w)); }, h);
    }
    const at::Tensor loss = h.square().mean();
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    std::printf("step %d  loss %.5f\n", step, loss.item<float>());
  }
  optimizer.drain();
  std::printf("on %s: layer inputs out %zu bytes, states on the device now %zu of %zu bytes\n",
              device.str().c_str(),
              inputs.stats().bytes_out,
              optimizer.device_state_bytes(),
              optimizer.stats().state_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string type = argc > 1 ? argv[1] : "sim";
  try {
    // [any device
    const swapline::Backend backend(type);  // "sim", "cuda", "npu" or "xpu"; outlives what is on it
    train(c10::Device(type + ":0"));
    // any device]
  } catch (const std::exception& error) {
    std::fprintf(stderr, "any_device: %s\n", error.what());
    return 1;
  }
  return 0;
}
