// The parameters of an optimizer on one device: checked, without duplicates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace swapline::detail {

struct ListedParam {
  at::Tensor tensor;
  size_t group = 0;
  std::string name;  // "parameter 3 of group 0", for errors
  // As it was when it came: an optimizer's states fit nothing else.
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool has_state = false;  // it was updated once, as torch.optim would have made its state
};

class ParamList {
 public:
  explicit ParamList(c10::Device device) : device_(device) {}

  // Adds those of a group's parameters that are on the device and not listed in it yet. Throws
  // c10::Error for one that cannot be optimized or is in another group; nothing is added then.
  void add(size_t group, std::span<const at::Tensor> tensors);
  // Forgets the last ones.
  void truncate(size_t num_params);

  c10::Device device() const { return device_; }
  size_t size() const { return params_.size(); }
  ListedParam& operator[](size_t index) { return params_[index]; }
  const ListedParam& operator[](size_t index) const { return params_[index]; }
  bool contains(const at::Tensor& tensor) const;
  // Requires: contains(tensor).
  size_t index_of(const at::Tensor& tensor) const;

  // The gradient of parameter `index`, dense and in the parameter's order of memory; undefined if
  // it has none. Throws c10::Error if it is of a kind that cannot be used, or if the parameter is
  // no longer what it was: other sizes, dtype or device.
  at::Tensor checked_grad(size_t index) const;

 private:
  c10::Device device_;
  std::vector<ListedParam> params_;
  std::unordered_map<const c10::TensorImpl*, size_t> indices_;
};

}  // namespace swapline::detail
