// Device memory for what an update needs beside parameters, gradients and states: one allocation
// for a whole step, so that no update in the middle can fail for want of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

// Hands out vectors from the front. Whoever uses them enqueues on one stream, in order, so what was
// handed out before reset() may be handed out again.
class Scratch {
 public:
  Scratch() = default;
  // `bytes`: [num_bytes] of kByte.
  explicit Scratch(at::Tensor bytes) : bytes_(std::move(bytes)) {}

  // What take() of `num_elements` costs, in elements.
  static int64_t padded(int64_t num_elements) { return (num_elements + 63) / 64 * 64; }

  // An uninitialized vector [num_elements]. Requires: there is as much left.
  at::Tensor take(at::ScalarType dtype, int64_t num_elements);
  int64_t used_bytes() const { return used_bytes_; }
  // Takes back what was handed out since so much was used.
  void reset(int64_t used_bytes = 0) { used_bytes_ = used_bytes; }

 private:
  at::Tensor bytes_;
  int64_t used_bytes_ = 0;
};

}  // namespace swapline::detail
