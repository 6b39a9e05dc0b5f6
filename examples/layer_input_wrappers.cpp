// The smallest use of each wrapper, for a framework that recomputes and saves by itself. Here the
// framework is a few lines: layers, and calls of their forward and backward.
#include "sim/torch/sim.h"
#include "swapline/swapline.h"

#include <cstdio>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace {

// [layer
struct Layer : swapline::SwapLayer {
  at::Tensor weight;
};

std::vector<at::Tensor> layer_forward(swapline::SwapLayer& layer, const swapline::LayerCall& call) {
  const at::Tensor& h = call.hidden_states;
  return {h + at::gelu(at::mm(h, static_cast<Layer&>(layer).weight))};
}
// layer]

// Backward with its recompute; the gradient of the layer's input.
std::vector<at::Tensor> layer_backward(const swapline::LayerGraph& graph) {
  const at::Tensor input = graph.layer_input.detach().set_requires_grad(true);
  layer_forward(*graph.layer, {.hidden_states = input}).front().sum().backward();
  return {input.grad()};
}

std::vector<at::Tensor> both(swapline::SwapLayer& layer,
                             const swapline::LayerCall& call,
                             const swapline::LayerGraph& graph) {
  layer_backward(graph);
  const c10::NoGradGuard no_grad;
  return layer_forward(layer, call);
}

}  // namespace

int main() {
  swapline::sim::configure({.spec = swapline::sim::preset("tiny")});
  const c10::Device device = swapline::sim::device();
  const at::Tensor h = at::randn({64, 256}, device);
  const at::Tensor expected = h.cpu();

  // [init
  auto context = std::make_shared<swapline::SwapContext>(device);
  auto all = std::make_shared<swapline::SwapLayerInputs>(context);
  const auto init = swapline::swap_layer_input_init_wrapper(
      [device](swapline::SwapLayer& layer) {
        static_cast<Layer&>(layer).weight =
            (at::randn({256, 256}, device) * 0.05).set_requires_grad(true);
      },
      all);
  std::vector<Layer> layers(3);
  for (Layer& layer : layers) {
    init(layer);
  }
  // init]

  // [forward
  const auto forward = swapline::swap_layer_input_forward_wrapper(layer_forward);
  const at::Tensor saved = (h * 1).set_requires_grad(true) * 1;  // what the framework keeps
  {
    const c10::NoGradGuard no_grad;  // the first run, inside the framework's recompute function
    forward(layers[0], {.hidden_states = saved});
  }
  // In backward it runs the layer again: the input is there when the layer starts.
  forward(layers[0], {.hidden_states = saved.detach().set_requires_grad(true)});
  // forward]

  // [overlap
  const auto first = swapline::swap_layer_input_fboverlap_forward_wrapper(layer_forward);
  const auto pair = swapline::swap_layer_input_fboverlap_1f1b_wrapper(both);
  const auto back = swapline::swap_layer_input_fboverlap_backward_wrapper(layer_backward);
  const at::Tensor h0 = h * 2;
  const at::Tensor h1 = h * 3;
  {
    const c10::NoGradGuard no_grad;
    first(layers[1], {.hidden_states = h0, .checkpoint = true});
  }
  // Layer 2 forward for one micro-batch, layer 1 backward for another.
  pair(layers[2], {.hidden_states = h1, .checkpoint = true}, {&layers[1], h0});
  back({&layers[2], h1});
  // overlap]

  const bool is_right = at::equal(saved.detach().cpu(), expected) &&
                        at::equal(h0.cpu(), expected * 2) && at::equal(h1.cpu(), expected * 3) &&
                        all->stats().num_swapped_out == 3 &&
                        swapline::sim::simulator().num_races() == 0;
  std::printf("%s\n", is_right ? "the inputs went out and came back" : "wrong");
  return is_right ? 0 : 1;
}
