// The routed experts that a rank holds, computed as grouped products. Shapes: M rows, D = dim, L
// experts here, F = hidden size of an expert.
#pragma once

#include "trainer/models/deepseek_v3_shape.h"
#include "trainer/models/model.h"

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

struct Experts {
  at::Tensor w1, w2, w3;  // [L, F, D], [L, D, F], [L, F, D]

  // Rows sorted by expert, `ends` (int32 [L], on the device) where each one's rows end.
  // [M, D], weights [M, 1] -> [M, D].
  at::Tensor forward(const at::Tensor& rows,
                     const at::Tensor& weights,
                     const at::Tensor& ends) const;
  // The host knows how many rows each expert has, and does not wait for the device.
  at::Tensor forward(const at::Tensor& rows,
                     const at::Tensor& weights,
                     const std::vector<int64_t>& counts) const;
};

// Throws: UsageError when the experts cannot be shared evenly.
Experts make_experts(const DeepseekV3Shape& shape,
                     const std::string& prefix,
                     double std_out,
                     ExpertShard shard,
                     Device& device,
                     ParameterFactory& parameters);

}  // namespace swapline::trainer
