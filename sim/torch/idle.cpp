// A thread of autograd takes its next node only when it has let go of the last one: a backward that
// does nothing, on the device's thread, returns behind that.
#include "sim/torch/idle.h"

#include "sim/torch/sim.h"
#include "sim/torch/storage.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace swapline::sim {
namespace {

// Made by hand: a dispatched at::empty would pass through whatever modes the caller is in.
at::Tensor no_elements(int index) {
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      make_device_storage(c10::DataPtr(nullptr, device(index)), 0),
      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      caffe2::TypeMeta::Make<float>());
  made.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return made;
}

struct Nothing : torch::autograd::Function<Nothing> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& at) {
    return no_elements(at.device().index());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& /*grads*/) {
    return {at::Tensor()};
  }
};

// Throws c10::Error when autograd has no thread for the device, or may not be called here.
void run_through_autograd(int index) {
  const c10::InferenceMode no_inference(false);
  const at::AutoGradMode with_grad(true);
  at::Tensor leaf = no_elements(index);
  leaf.set_requires_grad(true);
  torch::autograd::backward({Nothing::apply(leaf)}, {no_elements(index)});
}

bool is_in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

}  // namespace

void wait_until_idle(int device) {
  if (is_in_backward()) {
    return;
  }
  try {
    run_through_autograd(device);
  } catch (const c10::Error&) {  // under Python's lock
  }
}

void wait_until_idle() {
  for (int device = 0; device < kNumDevices; ++device) {
    wait_until_idle(device);
  }
}

bool wait_until_idle_for(std::chrono::milliseconds limit) {
  auto idle = std::make_shared<std::promise<void>>();
  auto is_idle = idle->get_future();
  std::thread([idle] {
    wait_until_idle();
    idle->set_value();
  }).detach();
  return is_idle.wait_for(limit) == std::future_status::ready;
}

void check_loaded_in_time() {
  // Threads that are not the first to ask go on: they may make tensors before the answer is there.
  enum class Answer { kUnknown, kAsking, kInTime, kLate };
  static std::atomic<Answer> answer{Answer::kUnknown};
  Answer expected = Answer::kUnknown;
  if (answer.load(std::memory_order_acquire) == Answer::kUnknown &&
      answer.compare_exchange_strong(expected, Answer::kAsking)) {
    try {
      run_through_autograd(0);
      answer = Answer::kInTime;
    } catch (const c10::Error&) {
      answer = Answer::kLate;
    }
  }
  TORCH_CHECK(
      answer.load(std::memory_order_acquire) != Answer::kLate,
      "the simulated device was loaded too late: autograd started its device threads at the "
      "first backward of this process and cannot start more. Load libswapline_sim (import "
      "swapline.sim) before any backward");
}

}  // namespace swapline::sim
