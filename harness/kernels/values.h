// The tensors in an operator's arguments and results.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace swapline::harness {

// The value with `change` of each tensor in its place.
template <typename F>
c10::IValue map_tensors(const c10::IValue& value, const F& change) {
  if (value.isTensor()) {
    return change(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(change(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      const bool is_there = tensor && tensor->defined();
      list.push_back(is_there ? std::optional<at::Tensor>(change(*tensor)) : tensor);
    }
    return list;
  }
  return value;
}

inline std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  map_tensors(value, [&](const at::Tensor& tensor) {
    tensors.push_back(tensor);
    return tensor;
  });
  return tensors;
}

}  // namespace swapline::harness
