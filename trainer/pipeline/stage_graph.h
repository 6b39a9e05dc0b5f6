// The autograd graph of one micro-batch in one stage, cut off from those of its neighbours. It
// holds neither the stage's input nor its output: both may leave the device before backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace swapline::trainer {

// The tensor as the beginning of a graph of its own; its gradient comes to grad().
inline at::Tensor as_leaf(const at::Tensor& tensor) {
  return tensor.detach().set_requires_grad(true);
}

// Where a gradient waits that enters a graph or has left it.
struct GradientSlot : torch::CustomClassHolder {
  at::Tensor gradient;
};

class StageGraph {
 public:
  // The stage's input, as the beginning of the graph. `received` must not require a gradient.
  at::Tensor enter(at::Tensor received);
  // The end of the graph; returns the output without it, to be sent on.
  at::Tensor leave(const at::Tensor& output);
  // The end of the graph in the last stage.
  void end_in_loss(const at::Tensor& loss) { end_ = loss; }

  // Runs backward from `gradient` of the output; undefined: from the loss. Returns the gradient of
  // the input, undefined where nothing was entered.
  at::Tensor backward(at::Tensor gradient);

 private:
  at::Tensor end_;
  c10::intrusive_ptr<GradientSlot> input_gradient_;
  c10::intrusive_ptr<GradientSlot> output_gradient_;
};

}  // namespace swapline::trainer
