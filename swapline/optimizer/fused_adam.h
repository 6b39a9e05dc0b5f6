// Multi-tensor launches of torch's fused Adam kernels: one per group and dtype.
#pragma once

#include "swapline/optimizer/adam_settings.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

// The operands of one parameter or a piece of it. All are dense, of the same number of elements and
// in the same order of memory.
struct AdamOperands {
  at::Tensor param;
  at::Tensor grad;
  std::vector<at::Tensor> states;  // exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq
  at::Tensor step;                 // fp32 scalar on the device: the number of this step
};

// Collects operands and launches them together on the current stream.
class FusedAdam {
 public:
  void add(size_t group, AdamOperands operands);
  // Updates all that was added, by the settings of each group, and forgets it.
  void launch(const std::vector<AdamSettings>& groups);
  void clear() { batches_.clear(); }
  int64_t num_launches() const { return num_launches_; }

 private:
  struct Batch {
    size_t group;
    at::ScalarType dtype;
    std::vector<at::Tensor> params;
    std::vector<at::Tensor> grads;
    std::vector<std::vector<at::Tensor>> states;  // per kind of state
    std::vector<at::Tensor> steps;
  };

  std::vector<Batch> batches_;
  int64_t num_launches_ = 0;
};

// Elements [first, first + num) of a dense tensor in the order of its memory, as a vector.
at::Tensor flat_part(const at::Tensor& dense, int64_t first, int64_t num);

}  // namespace swapline::detail
