// A framework in small that does its own recompute and saving, as the wrappers expect one: a
// reentrant checkpoint function, and layers with a forward of their own.
#pragma once

#include "swapline/layer_input/wrappers.h"
#include "tests/support/tensors.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace swapline::testing {

using Block = std::function<at::Tensor(const at::Tensor&)>;

// Saves its input as any autograd function does, and runs `block` again in backward.
struct CheckpointFunction : torch::autograd::Function<CheckpointFunction> {
  struct Holder : torch::CustomClassHolder {
    explicit Holder(Block block) : block(std::move(block)) {}
    Block block;
  };
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const c10::intrusive_ptr<Holder>& holder,
                            const at::Tensor& input) {
    context->save_for_backward({input});
    context->saved_data["block"] = c10::IValue::make_capsule(holder);
    return holder->block(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["block"].toCapsule());
    const at::Tensor saved = context->get_saved_variables().front();
    const at::Tensor input = saved.detach().set_requires_grad(saved.requires_grad());
    {
      const at::AutoGradMode with_grad(true);
      torch::autograd::backward({holder->block(input)}, {grads.front()});
    }
    return {at::Tensor(), input.grad()};
  }
};

inline at::Tensor checkpoint(Block block, const at::Tensor& input) {
  return CheckpointFunction::apply(
      c10::make_intrusive<CheckpointFunction::Holder>(std::move(block)), input);
}

// h + gelu(h A) B.
struct FrameworkLayer : SwapLayer {
  at::Tensor a;
  at::Tensor b;
  LayerForward forward;

  explicit FrameworkLayer(uint64_t seed, int64_t width = 29)
      : a(random_parameter({width, width}, seed)), b(random_parameter({width, width}, seed + 1)) {
    forward = [this](SwapLayer& /*layer*/, const LayerCall& call) {
      const at::Tensor& h = call.hidden_states;
      return std::vector<at::Tensor>{h + at::mm(at::gelu(at::mm(h, a)), b)};
    };
  }
};

struct FrameworkModel {
  std::vector<std::unique_ptr<FrameworkLayer>> layers;
  at::Tensor embedding;

  // `all` null: no layer is wrapped.
  explicit FrameworkModel(const std::shared_ptr<SwapLayerInputs>& all, int64_t num_layers = 6)
      : embedding(random_parameter({29, 29}, 500)) {
    for (int64_t i = 0; i < num_layers; ++i) {
      layers.push_back(std::make_unique<FrameworkLayer>(10 * i));
      FrameworkLayer& layer = *layers.back();
      if (all != nullptr) {
        swap_layer_input_init_wrapper([](SwapLayer&) {}, all)(layer);
        layer.forward = swap_layer_input_forward_wrapper(layer.forward);
      }
    }
  }

  at::Tensor run_layer(size_t i, const at::Tensor& h, bool swap_this_tensor = true) {
    FrameworkLayer& layer = *layers[i];
    return layer.forward(layer, {.hidden_states = h, .swap_this_tensor = swap_this_tensor}).front();
  }
  // Each layer recomputed, `block_size` together.
  at::Tensor forward(const at::Tensor& x, size_t block_size = 1) {
    at::Tensor h = at::mm(x, embedding);
    for (size_t i = 0; i < layers.size(); i += block_size) {
      const size_t end = std::min(i + block_size, layers.size());
      h = checkpoint(
          [this, i, end](const at::Tensor& in) {
            at::Tensor inner = in;
            for (size_t k = i; k < end; ++k) {
              inner = run_layer(k, inner);
            }
            return inner;
          },
          h);
    }
    return h.square().mean();
  }
  std::vector<at::Tensor> grads_on_cpu() const {
    std::vector<at::Tensor> grads = {embedding.grad().defined() ? embedding.grad().cpu()
                                                                : at::Tensor()};
    for (const auto& layer : layers) {
      for (const at::Tensor& weight : {layer->a, layer->b}) {
        grads.push_back(weight.grad().defined() ? weight.grad().cpu() : at::Tensor());
      }
    }
    return grads;
  }
  void clear_grads() const {
    embedding.mutable_grad() = at::Tensor();
    for (const auto& layer : layers) {
      layer->a.mutable_grad() = at::Tensor();
      layer->b.mutable_grad() = at::Tensor();
    }
  }
};

inline at::Tensor framework_batch(uint64_t index, int64_t rows = 33) {
  return random_tensor({rows, 29}, 900 + index);
}

// Gradients of the batches 0..n-1 without any swap.
inline std::vector<at::Tensor> framework_grads(uint64_t num_batches, size_t block_size = 1) {
  FrameworkModel plain(nullptr);
  for (uint64_t i = 0; i < num_batches; ++i) {
    plain.forward(framework_batch(i), block_size).backward();
  }
  return plain.grads_on_cpu();
}

}  // namespace swapline::testing
