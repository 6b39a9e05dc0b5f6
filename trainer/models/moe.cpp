#include "trainer/models/moe.h"

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

// Numbers that the host knows, on the device: by value in the operators, since a copy from pageable
// memory would make the host wait for everything enqueued.
at::Tensor ends_on(const at::TensorOptions& options, const std::vector<int64_t>& counts) {
  const bool is_even =
      std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
  const auto size = static_cast<int64_t>(counts.size());
  if (is_even && counts.front() > 0) {
    return at::arange(
        counts.front(), counts.front() * size + 1, counts.front(), options.dtype(at::kInt));
  }
  std::vector<at::Tensor> ends;
  int64_t end = 0;
  for (const int64_t count : counts) {
    end += count;
    ends.push_back(at::full({}, end, options.dtype(at::kInt)));
  }
  return at::stack(ends);
}

}  // namespace

at::Tensor Experts::forward(const at::Tensor& rows,
                            const at::Tensor& weights,
                            const at::Tensor& ends) const {
  const auto product = [&](const at::Tensor& x, const at::Tensor& matrices) {
    return at::_grouped_mm(x, matrices.transpose(1, 2), ends);
  };
  const at::Tensor hidden = at::mul(at::silu(product(rows, w1)), product(rows, w3));
  // Before the last product, where a row is shorter than behind it.
  return product(at::mul(hidden, weights), w2);
}

at::Tensor Experts::forward(const at::Tensor& rows,
                            const at::Tensor& weights,
                            const std::vector<int64_t>& counts) const {
  return forward(rows, weights, ends_on(rows.options(), counts));
}

Experts make_experts(const DeepseekV3Shape& shape,
                     const std::string& prefix,
                     double std_out,
                     ExpertShard shard,
                     Device& device,
                     ParameterFactory& parameters) {
  const int64_t num_experts = shape.moe.num_experts;
  if (num_experts % shard.count != 0) {
    throw UsageError("--parallelism.expert-parallel-degree: found " + std::to_string(shard.count) +
                     ", allowed is what divides the " + std::to_string(num_experts) +
                     " experts of a layer");
  }
  const int64_t num_here = num_experts / shard.count;
  const Rows rows{shard.index * num_here, num_here};
  const auto matrices = [&](const char* name, int64_t height, int64_t width, double std) {
    return parameters.normal_rows(device, prefix + name, {num_experts, height, width}, std, rows);
  };
  Experts experts;
  experts.w1 = matrices("w1", shape.moe.ffn_dim, shape.dim, 0.02);
  experts.w2 = matrices("w2", shape.dim, shape.moe.ffn_dim, std_out);
  experts.w3 = matrices("w3", shape.moe.ffn_dim, shape.dim, 0.02);
  return experts;
}

}  // namespace swapline::trainer
