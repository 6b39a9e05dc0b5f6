// A small stack of recomputed layers on the simulated device, its training loop, and what it
// leaves: losses, gradients and parameters to compare by bits.
#pragma once

#include "swapline/layer_input/layer_inputs.h"
#include "tests/support/tensors.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace swapline::testing {

struct TinyModelOptions {
  int64_t num_layers = 6;
  int64_t batch = 33;
  int64_t width = 29;
  double dropout = 0;
  uint64_t seed = 1;
};

// h0 = x E; h(i+1) = h(i) + dropout(gelu(h(i) A(i))) B(i); loss = mean(h(L)^2).
class TinyModel {
 public:
  explicit TinyModel(TinyModelOptions options = {}) : options_(options) {
    for (int64_t i = 0; i < 2 * options.num_layers + 1; ++i) {
      parameters_.push_back(random_parameter({options.width, options.width}, options.seed + i));
    }
  }

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const TinyModelOptions& options() const { return options_; }

  // `index`-th batch, without history. [batch, width]
  at::Tensor batch(int64_t index) const {
    return random_tensor({options_.batch, options_.width}, 1000 + options_.seed + index);
  }
  at::Tensor embed(const at::Tensor& x) const { return at::mm(x, parameters_.front()); }
  at::Tensor run_layer(int64_t i, const at::Tensor& h) const {
    at::Tensor inner = at::gelu(at::mm(h, parameters_[2 * i + 1]));
    if (options_.dropout > 0) {
      inner = at::dropout(inner, options_.dropout, /*train=*/true);
    }
    return h + at::mm(inner, parameters_[2 * i + 2]);
  }
  // `inputs` null: ordinary autograd, nothing is recomputed.
  at::Tensor forward(LayerInputs* inputs, const at::Tensor& x) const {
    at::Tensor h = embed(x);
    for (int64_t i = 0; i < options_.num_layers; ++i) {
      if (inputs == nullptr) {
        h = run_layer(i, h);
      } else {
        h = inputs->recompute([this, i](const at::Tensor& in) { return run_layer(i, in); }, h);
      }
    }
    return h.square().mean();
  }

  // p -= 0.02 * grad, then no gradients.
  void step() {
    const c10::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters_) {
      if (parameter.grad().defined()) {
        parameter.sub_(parameter.grad(), 0.02);
        parameter.mutable_grad() = at::Tensor();
      }
    }
  }
  std::vector<at::Tensor> grads_on_cpu() const {
    std::vector<at::Tensor> grads;
    for (const at::Tensor& parameter : parameters_) {
      grads.push_back(parameter.grad().defined() ? parameter.grad().cpu() : at::Tensor());
    }
    return grads;
  }
  std::vector<at::Tensor> parameters_on_cpu() const {
    std::vector<at::Tensor> values;
    for (const at::Tensor& parameter : parameters_) {
      values.push_back(parameter.detach().cpu());
    }
    return values;
  }

 private:
  TinyModelOptions options_;
  std::vector<at::Tensor> parameters_;
};

// On the CPU.
struct Outcome {
  std::vector<at::Tensor> losses;
  std::vector<at::Tensor> grads;  // of the last step
  std::vector<at::Tensor> parameters;
};

inline bool same_bits(const Outcome& a, const Outcome& b) {
  return same_bits(a.losses, b.losses) && same_bits(a.grads, b.grads) &&
         same_bits(a.parameters, b.parameters);
}

struct TrainOptions {
  TinyModelOptions model = {};
  int64_t steps = 3;
  int64_t accumulate = 1;  // micro-batches a step
  bool eval_between = false;
  bool synced = false;  // reads each loss; else the host runs far ahead of the device
};

inline Outcome train(const TrainOptions& options, LayerInputs* inputs) {
  TinyModel model(options.model);
  std::vector<at::Tensor> losses;
  // Made first: a copy to the device makes the host wait.
  std::vector<at::Tensor> batches;
  for (int64_t i = 0; i < options.steps * options.accumulate; ++i) {
    batches.push_back(model.batch(i));
  }
  Outcome outcome;
  for (int64_t i = 0; i < options.steps; ++i) {
    for (int64_t k = 0; k < options.accumulate; ++k) {
      const at::Tensor loss = model.forward(inputs, batches[i * options.accumulate + k]);
      loss.backward();
      losses.push_back(options.synced ? loss.detach().cpu() : loss.detach());
    }
    if (options.eval_between) {
      const c10::NoGradGuard no_grad;
      losses.push_back(model.forward(inputs, batches.front()));
    }
    if (i + 1 == options.steps) {
      outcome.grads = model.grads_on_cpu();
    }
    model.step();
  }
  for (const at::Tensor& loss : losses) {
    outcome.losses.push_back(loss.cpu());
  }
  outcome.parameters = model.parameters_on_cpu();
  return outcome;
}

// A context and layer inputs that end with the scope.
struct SwappedLayers {
  explicit SwappedLayers(LayerInputOptions options = {}, SwapContextOptions context_options = {})
      : context(std::make_shared<SwapContext>(sim::device(), std::move(context_options))),
        inputs(context, std::move(options)) {}

  std::shared_ptr<SwapContext> context;
  LayerInputs inputs;
};

}  // namespace swapline::testing
