// What a kernel updates in one launch: parts of parameters of one group, all of one dtype.
#pragma once

#include "swapline/optimizer/adam_settings.h"

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

// Lists of equal length. The operands of one part are dense, of the same number of elements and in
// the same order of memory.
struct AdamBatch {
  std::vector<at::Tensor> params;  // or masters
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> exp_avgs;
  std::vector<at::Tensor> exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;  // empty without amsgrad
  std::vector<at::Tensor> steps;            // fp32 scalars on the device
  std::vector<double> step_numbers;         // the same on the host, from 1
  bool owns_grads = false;                  // the gradients are copies that may be changed
};

}  // namespace swapline::detail
