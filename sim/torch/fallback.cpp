// Every operator that has no kernel of its own here: run by torch's CPU kernel on stand-ins that
// share the device's memory; in a dry run by its Meta kernel, for the shapes alone.
#include "sim/torch/dry_run.h"
#include "sim/torch/generator.h"
#include "sim/torch/launch.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include <ATen/Context.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <torch/library.h>

namespace swapline::sim {
namespace {

using torch::jit::Stack;

constexpr size_t kNoArgument = static_cast<size_t>(-1);

// What is known of an operator from its schema, looked up once.
struct OpTraits {
  std::string name;
  bool is_view = false;             // returns views only: touches no bytes
  bool is_in_place = false;         // every result is an argument
  bool only_overwrites = false;     // fill_ and its like do not read what they write
  bool draws_unseen = false;        // random, but its schema has no generator to give it
  bool takes_host_tensors = false;  // beside the device's
  FlopRule flops = FlopRule::kNone;
  ByteRule bytes = ByteRule::kAll;
  std::vector<bool> is_written;  // by argument
  std::vector<bool> is_out;
  size_t generator = kNoArgument;  // index of the argument that takes a generator
};

bool is_generator(const c10::Argument& argument) {
  return argument.type()->str().find("Generator") != std::string::npos;
}

OpTraits look_at(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OpTraits traits;
  traits.name = schema.name();
  traits.flops = flop_rule(traits.name);
  traits.bytes = byte_rule(traits.name);
  for (const c10::Argument& argument : schema.arguments()) {
    const auto* alias = argument.alias_info();
    if (is_generator(argument)) {
      traits.generator = traits.is_written.size();
    }
    traits.is_written.push_back(alias != nullptr && alias->isWrite());
    traits.is_out.push_back(argument.is_out());
  }
  traits.is_view = !schema.returns().empty();
  traits.is_in_place = true;
  for (const c10::Argument& result : schema.returns()) {
    const auto* alias = result.alias_info();
    traits.is_view = traits.is_view && alias != nullptr && !alias->isWrite();
    traits.is_in_place = traits.is_in_place && alias != nullptr && alias->isWrite();
  }
  for (const bool is_out : traits.is_out) {
    traits.is_in_place = traits.is_in_place && !is_out;
  }
  static constexpr std::string_view kFills[] = {"aten::zero_",
                                                "aten::fill_",
                                                "aten::normal_",
                                                "aten::uniform_",
                                                "aten::bernoulli_",
                                                "aten::random_"};
  for (const std::string_view fill : kFills) {
    traits.only_overwrites = traits.only_overwrites || traits.name == fill;
  }
  // Indices may lie on the host; foreach copies go one by one where they cross.
  static constexpr std::string_view kMixed[] = {"aten::index",
                                                "aten::index_put",
                                                "aten::index_put_",
                                                "aten::_index_put_impl_",
                                                "aten::_unsafe_index",
                                                "aten::_unsafe_index_put"};
  for (const std::string_view mixed : kMixed) {
    traits.takes_host_tensors = traits.takes_host_tensors || traits.name == mixed;
  }
  traits.draws_unseen =
      op.hasTag(at::Tag::nondeterministic_seeded) && traits.generator == kNoArgument;
  return traits;
}

const OpTraits& traits_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OpTraits> known;
  const auto found = known.find(&op.schema());
  if (found != known.end()) {
    return found->second;
  }
  return known.emplace(&op.schema(), look_at(op)).first->second;
}

int device_of_value(const c10::IValue& value) {
  if (value.isTensor()) {
    return is_on_device(value.toTensor()) ? value.toTensor().device().index() : kHost;
  }
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (is_on_device(tensor)) {
        return tensor.device().index();
      }
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      if (tensor && is_on_device(*tensor)) {
        return tensor->device().index();
      }
    }
  } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
    const int index = value.toDevice().index();
    return index < 0 ? current_device() : index;
  }
  return kHost;
}

int device_of_call(const Stack& stack, size_t first) {
  for (size_t i = first; i < stack.size(); ++i) {
    const int index = device_of_value(stack[i]);
    if (index != kHost) {
      return index;
    }
  }
  return current_device();
}

// Replaces the arguments of a call by stand-ins and its results by device tensors.
class BoxedCall {
 public:
  BoxedCall(const c10::OperatorHandle& op, Stack& stack)
      : op_(op),
        traits_(traits_of(op)),
        stack_(stack),
        first_(stack.size() - op.schema().arguments().size()),
        device_(device_of_call(stack, first_)),
        launch_(traits_.name.c_str(), device_) {}

  void run() {
    for (size_t i = first_; i < stack_.size(); ++i) {
      replace_argument(i, i - first_);
    }
    const double flops = count_flops();
    if (!traits_.is_view) {
      launch_.begin();
    }
    run_kernel();
    launch_.finish_written();
    for (size_t i = first_; i < stack_.size(); ++i) {
      replace_result(stack_[i]);
    }
    if (!traits_.is_view) {
      if (traits_.bytes == ByteRule::kGather) {
        launch_.set_gathered(result_bytes_);
      }
      launch_.end(flops);
    }
  }

 private:
  // As real devices refuse it; scalars come along.
  void check_device(const at::Tensor& tensor, size_t argument) const {
    TORCH_CHECK(
        traits_.takes_host_tensors || !tensor.defined() || tensor.dim() == 0 || !tensor.is_cpu(),
        traits_.name,
        ": expected all tensors to be on the same device, but found at least two devices, "
        "sim:",
        device_,
        " and cpu (argument ",
        op_.schema().arguments()[argument].name(),
        ")");
  }

  at::Tensor stand_in(const at::Tensor& tensor, size_t argument) {
    if (!is_on_device(tensor)) {
      check_device(tensor, argument);
      return tensor;
    }
    if (traits_.is_view) {
      return launch_.shape_only(tensor);
    }
    if (!traits_.is_written[argument]) {
      return launch_.in(tensor);
    }
    const bool only_writes = traits_.is_out[argument] || traits_.only_overwrites;
    return only_writes ? launch_.overwritten(tensor) : launch_.inout(tensor);
  }

  void replace_argument(size_t i, size_t argument) {
    c10::IValue& value = stack_[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) {
        value = stand_in(value.toTensor(), argument);
      }
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> aliases;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        aliases.push_back(stand_in(tensor, argument));
      }
      value = std::move(aliases);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> aliases;
      for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
        aliases.push_back(tensor ? std::optional(stand_in(*tensor, argument)) : std::nullopt);
      }
      value = std::move(aliases);
    } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
      value = launch_.is_dry() ? c10::Device(c10::kMeta) : c10::Device(c10::kCPU);
    } else if (argument == traits_.generator) {
      replace_generator(value);
    }
  }

  void replace_generator(c10::IValue& value) {
    const bool is_ours = value.isNone() || value.toGenerator().device().is_privateuseone();
    if (is_ours) {
      value = draw(value.isNone() ? default_generator(device_) : value.toGenerator());
    }
  }

  void run_kernel() {
    if (launch_.is_dry()) {
      if (!traits_.is_in_place) {
        run_shape_function(op_, stack_);
      } else {
        keep_written_arguments();
      }
      return;
    }
    // What a kernel calls on its way is the device's doing, not the host's.
    const at::DisableRecordFunctionGuard unseen;
    if (!traits_.draws_unseen) {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
      return;
    }
    // The kernel takes the process's CPU generator without being asked: lend it ours.
    at::Generator cpu = at::globalContext().defaultGenerator(c10::kCPU);
    const at::Tensor saved = cpu.get_state();
    cpu.set_state(draw(default_generator(device_)).get_state());
    try {
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
    } catch (...) {
      cpu.set_state(saved);
      throw;
    }
    cpu.set_state(saved);
  }

  // The results of an in-place operator are its written arguments: no kernel is needed for that.
  void keep_written_arguments() {
    Stack results;
    for (size_t i = 0; i < traits_.is_written.size(); ++i) {
      if (traits_.is_written[i] && results.size() < op_.schema().returns().size()) {
        results.push_back(stack_[first_ + i]);
      }
    }
    stack_.erase(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
    stack_.insert(stack_.end(), results.begin(), results.end());
  }

  void replace_result(c10::IValue& value) {
    if (value.isTensor()) {
      value = to_device(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> results;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        results.push_back(to_device(tensor));
      }
      value = std::move(results);
    }
  }

  at::Tensor to_device(const at::Tensor& result) {
    at::Tensor moved = launch_.out(result);
    if (moved.defined()) {
      result_bytes_ += bytes_of(moved);
    }
    return moved;
  }

  double count_flops() const {
    if (traits_.flops == FlopRule::kNone) {
      return 0;
    }
    const size_t a = first_ + (traits_.flops == FlopRule::kProduct12 ? 1 : 0);
    return product_flops(stack_[a].toTensor(), stack_[a + 1].toTensor());
  }

  const c10::OperatorHandle& op_;
  const OpTraits& traits_;
  Stack& stack_;
  size_t first_;
  int device_;
  Launch launch_;
  double result_bytes_ = 0;
};

bool are_on_device(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), is_on_device);
}

// One by one where tensors cross between host and device, as real devices do it; else in one
// launch.
void run_foreach_copy(const c10::OperatorHandle& op, Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const auto to = (*stack)[first].toTensorVector();
  const auto from = (*stack)[first + 1].toTensorVector();
  if (to.size() != from.size() || (are_on_device(to) && are_on_device(from))) {
    BoxedCall(op, *stack).run();
    return;
  }
  const bool non_blocking = (*stack)[first + 2].toBool();
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].copy_(from[i], non_blocking);
  }
}

void run_boxed(const c10::OperatorHandle& op, Stack* stack) {
  BoxedCall(op, *stack).run();
}

auto boxed() {
  return torch::CppFunction::makeFromBoxedFunction<&run_boxed>();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(boxed());
}

// torch leaves the autograd key of a private device to the device.
TORCH_LIBRARY_IMPL(_, AutogradPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

// Without this, torch runs these in place as a shape check and a call of the out= variant, which
// builds everything twice.
bool is_decomposed_in_place(const c10::OperatorName& name) {
  const auto op = c10::Dispatcher::singleton().findOp(name);
  return op && name.name.back() == '_' && name.name.rfind("aten::", 0) == 0 &&
         op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         op->hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool is_foreach(const c10::OperatorName& name) {
  return name.name.rfind("aten::_foreach_", 0) == 0 &&
         name.overload_name.find("out") == std::string::npos;
}

// Operators that torch would decompose, which one kernel serves on real devices.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* name : {"native_layer_norm",
                           "native_layer_norm_backward",
                           "native_group_norm",
                           "native_group_norm_backward",
                           "embedding",
                           "_grouped_mm",
                           "_fused_adam_",
                           "_fused_adamw_",
                           "_fused_adam_.tensor_lr",
                           "_fused_adamw_.tensor_lr",
                           "silu_backward",
                           "mish_backward"}) {
    m.impl(name, boxed());
  }
  constexpr size_t kNamespaceLength = std::string_view("aten::").size();
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name == "aten::_foreach_copy_") {
      m.impl("_foreach_copy_", torch::CppFunction::makeFromBoxedFunction<&run_foreach_copy>());
    } else if (is_foreach(name) || is_decomposed_in_place(name)) {
      const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
      m.impl((name.name.substr(kNamespaceLength) + overload).c_str(), boxed());
    }
  }
}

}  // namespace
}  // namespace swapline::sim
