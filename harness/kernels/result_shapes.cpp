#include "harness/kernels/result_shapes.h"

#include "harness/kernels/device_kernels.h"
#include "harness/kernels/values.h"

#include <mutex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>

#include <ATen/Functions.h>

namespace swapline::harness {
namespace {

using torch::jit::Stack;

at::Tensor meta_stand_in(const at::Tensor& tensor) {
  if (is_on_backend(tensor)) {
    return at::empty_strided(
        tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).requires_grad(false));
  }
  return tensor.defined() && tensor.dim() > 0 ? tensor.to(at::kMeta) : tensor;
}

c10::IValue on_meta(const c10::IValue& value) {
  if (value.isDevice()) {
    return value.toDevice().is_cpu() ? value : c10::IValue(c10::Device(at::kMeta));
  }
  return map_tensors(value, meta_stand_in);
}

// All that the shapes of results can depend on.
std::string signature(const c10::OperatorHandle& op, const Stack& arguments) {
  std::ostringstream text;
  text << op.operator_name();
  for (const c10::IValue& argument : arguments) {
    const std::vector<at::Tensor> tensors = tensors_in(argument);
    text << '|';
    for (const at::Tensor& tensor : tensors) {
      if (tensor.defined()) {
        text << tensor.device() << tensor.scalar_type() << tensor.sizes() << tensor.strides();
      }
    }
    if (tensors.empty() && !argument.isGenerator()) {
      text << argument.type()->str() << argument;
    }
  }
  return text.str();
}

}  // namespace

std::optional<Stack> shapes_of_results(const c10::OperatorHandle& op, const Stack& arguments) {
  static auto* known = new std::unordered_map<std::string, Stack>();
  static auto* mutex = new std::mutex();
  const std::string key = signature(op, arguments);
  {
    const std::lock_guard lock(*mutex);
    if (const auto found = known->find(key); found != known->end()) {
      return found->second;
    }
  }
  Stack stack;
  for (const c10::IValue& argument : arguments) {
    stack.push_back(on_meta(argument));
  }
  try {
    op.callBoxed(stack);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  const auto num_results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
  stack.erase(stack.begin(), stack.end() - num_results);
  const std::lock_guard lock(*mutex);
  return known->emplace(key, std::move(stack)).first->second;
}

}  // namespace swapline::harness
