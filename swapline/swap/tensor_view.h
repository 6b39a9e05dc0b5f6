// How a tensor looks at its storage, to be looked at so again. Inside swap/ only.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

namespace swapline::detail {

class TensorView {
 public:
  explicit TensorView(const at::Tensor& tensor);
  // A new tensor with the same sizes, strides, offset and dtype over `storage`. No autograd
  // history, a version counter of its own.
  at::Tensor over(const c10::Storage& storage) const;

 private:
  c10::SmallVector<int64_t, 5> sizes_;
  c10::SmallVector<int64_t, 5> strides_;
  int64_t offset_ = 0;
  at::TensorOptions options_;
  bool is_conj_ = false;
  bool is_neg_ = false;
};

}  // namespace swapline::detail
