// The parameters of an optimizer: checked, without duplicates, each with its step count.
#pragma once

#include "swapline/optimizer/adam_settings.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace swapline::detail {

struct AdamParam {
  at::Tensor tensor;
  size_t group = 0;
  std::string name;  // "parameter 3 of group 0", for errors
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool has_state = false;  // it was updated once, as torch.optim would have made its state
};

class AdamParams {
 public:
  // Throws c10::Error for a parameter that cannot be optimized or is in two groups.
  AdamParams(const std::vector<AdamGroup>& groups, c10::Device device);

  size_t size() const { return params_.size(); }
  AdamParam& operator[](size_t index) { return params_[index]; }
  const AdamParam& operator[](size_t index) const { return params_[index]; }
  // Throws c10::Error when `tensor` is none of them.
  size_t index_of(const at::Tensor& tensor) const;

  // The updates that each parameter has seen, fp32, on the host. The tensors are views of one
  // memory, so the user may change them.
  float& step(size_t index) { return step_values_[index]; }
  at::Tensor step_tensor(size_t index) const;

  // The gradient of parameter `index`, dense and in the parameter's order of memory; undefined if
  // it has none. Throws c10::Error if it is of a kind that cannot be used, or if the parameter is
  // no longer laid out as it was.
  at::Tensor checked_grad(size_t index) const;

 private:
  std::vector<AdamParam> params_;
  std::unordered_map<const c10::TensorImpl*, size_t> indices_;
  at::Tensor steps_;
  float* step_values_ = nullptr;
};

}  // namespace swapline::detail
