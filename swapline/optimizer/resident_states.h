// States that stay on the device: the plain optimizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

class ResidentStates {
 public:
  // The states of a parameter, made of zeros at the first call, laid out like it, of `dtypes`.
  const std::vector<at::Tensor>& of(size_t param,
                                    const at::Tensor& like,
                                    const std::vector<at::ScalarType>& dtypes);
  bool contains(size_t param) const { return states_.count(param) != 0; }
  size_t bytes() const { return bytes_; }

 private:
  std::unordered_map<size_t, std::vector<at::Tensor>> states_;
  size_t bytes_ = 0;
};

}  // namespace swapline::detail
