// A leaf holds its tensor, and so does the root of a backward. Two functions that pass gradients
// on stand in for both, with empty tensors in their places.
#include "trainer/pipeline/stage_graph.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace swapline::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using SlotPtr = c10::intrusive_ptr<GradientSlot>;

constexpr auto kSlot = "slot";

SlotPtr slot_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<GradientSlot>(context->saved_data[kSlot].toCapsule());
}

// From nothing to the input; its gradient goes into the slot.
struct EnterStage : torch::autograd::Function<EnterStage> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& /*leaf*/,
                            at::Tensor* received,
                            const SlotPtr& slot) {
    context->saved_data[kSlot] = c10::IValue::make_capsule(slot);
    return std::exchange(*received, {});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    slot_of(context)->gradient = std::move(gradients.front());
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// From the output to nothing; its gradient comes out of the slot.
struct LeaveStage : torch::autograd::Function<LeaveStage> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& output,
                            const SlotPtr& slot) {
    context->saved_data[kSlot] = c10::IValue::make_capsule(slot);
    return at::empty({0}, output.options());
  }
  static variable_list backward(AutogradContext* context, variable_list /*gradients*/) {
    return {std::exchange(slot_of(context)->gradient, {}), at::Tensor()};
  }
};

}  // namespace

at::Tensor StageGraph::enter(at::Tensor received) {
  input_gradient_ = c10::make_intrusive<GradientSlot>();
  const at::Tensor leaf = at::empty({0}, received.options()).set_requires_grad(true);
  return EnterStage::apply(leaf, &received, input_gradient_);
}

at::Tensor StageGraph::leave(const at::Tensor& output) {
  output_gradient_ = c10::make_intrusive<GradientSlot>();
  end_ = LeaveStage::apply(output, output_gradient_);
  return output.detach();
}

at::Tensor StageGraph::backward(at::Tensor gradient) {
  const at::Tensor end = std::exchange(end_, {});
  if (output_gradient_) {
    output_gradient_->gradient = std::move(gradient);
    torch::autograd::backward({end}, {at::empty({0}, end.options())});
  } else {
    torch::autograd::backward({end});
  }
  return input_gradient_ ? std::exchange(input_gradient_->gradient, {}) : at::Tensor();
}

}  // namespace swapline::trainer
