// The one place that touches torch's storages from inside: making, emptying and refilling them, and
// rebuilding a tensor over one. Inside swap/ only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

namespace swapline::detail {

// How a tensor looks at its storage.
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

// A storage of `bytes` on `device` from `allocator`. Caching allocators take the block from the
// pool of the current stream. Throws what the allocator throws (c10::OutOfMemoryError).
c10::Storage allocate_storage(c10::Allocator* allocator, c10::Device device, size_t bytes);

// Takes the memory out of a storage that tensors look at: it has 0 bytes then. The memory is
// returned as a storage of its own.
c10::Storage empty_storage(const c10::Storage& storage);
// Puts memory into an emptied storage.
void refill_storage(const c10::Storage& storage, const c10::Storage& memory);

}  // namespace swapline::detail
