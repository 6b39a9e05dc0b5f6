#include "sim/torch/host_watch.h"

#include "sim/torch/sim.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>

namespace swapline::sim {
namespace {

// Operators on several devices are copies, which the device checks itself; results that are views,
// and questions about a tensor, touch no bytes.
bool touches_bytes(const at::RecordFunction& call, const c10::FunctionSchema& schema) {
  for (const c10::IValue& value : call.inputs()) {
    if (value.isTensor() && value.toTensor().defined() && !value.toTensor().device().is_cpu()) {
      return false;
    }
  }
  if (schema.name() == "aten::is_pinned" || schema.name() == "aten::set_") {
    return false;
  }
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      return false;
    }
  }
  return true;
}

std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call) {
  const auto schema = call.operator_schema();
  if (!schema || !touches_bytes(call, *schema)) {
    return nullptr;
  }
  const auto& arguments = schema->arguments();
  for (size_t i = 0; i < call.inputs().size() && i < arguments.size(); ++i) {
    const c10::IValue& value = call.inputs()[i];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().has_storage()) {
      const at::Tensor& tensor = value.toTensor();
      const auto* alias = arguments[i].alias_info();
      simulator().host_access(schema->name(),
                              tensor.const_data_ptr(),
                              tensor.nbytes(),
                              alias != nullptr && alias->isWrite());
    }
  }
  return nullptr;
}

at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;

}  // namespace

void watch_host_ops(bool on) {
  if (on && callback == at::INVALID_CALLBACK_HANDLE) {
    callback = at::addGlobalCallback(
        at::RecordFunctionCallback(&on_call).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  } else if (!on && callback != at::INVALID_CALLBACK_HANDLE) {
    at::removeCallback(callback);
    callback = at::INVALID_CALLBACK_HANDLE;
  }
}

}  // namespace swapline::sim
