// The arithmetic of the common parts.
#include "trainer/models/blocks.h"

#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace swapline::trainer {

RopeTables::RopeTables(int64_t head_dim, double theta, int64_t seq_len) {
  const int64_t half = head_dim / 2;
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor frequency =
      at::pow(theta, at::arange(half, options).neg() / static_cast<double>(half));
  const at::Tensor angle = at::outer(at::arange(seq_len, options), frequency).unsqueeze(1);
  const at::Tensor sin = at::sin(angle);
  const at::Tensor cos = at::cos(angle);
  cos_ = at::cat({cos, cos}, -1);
  sin_ = at::cat({-sin, sin}, -1);
}

const Rope& RopeTables::on(Device& device, const ParameterFactory& parameters) {
  const auto found = tables_.find(&device);
  if (found != tables_.end()) {
    return found->second;
  }
  const Rope rope{parameters.constant(device, cos_), parameters.constant(device, sin_)};
  return tables_.emplace(&device, rope).first->second;
}

at::Tensor rotate(const at::Tensor& x, const Rope& rope) {
  const std::vector<at::Tensor> halves = at::chunk(x, 2, -1);
  return at::addcmul(at::mul(x, rope.cos), at::cat({halves[1], halves[0]}, -1), rope.sin);
}

at::Tensor swiglu(const at::Tensor& x,
                  const at::Tensor& w1,
                  const at::Tensor& w2,
                  const at::Tensor& w3) {
  return at::linear(at::mul(at::silu(at::linear(x, w1)), at::linear(x, w3)), w2);
}

at::Tensor head_loss(const at::Tensor& x, const at::Tensor& head, const at::Tensor& targets) {
  at::Tensor logits = at::linear(x, head);
  // Logits are the largest tensor of the step: nothing holds them once the logarithms are there.
  const at::Tensor log_probabilities =
      at::log_softmax(std::exchange(logits, {}).flatten(0, 1), -1, at::kFloat);
  return at::nll_loss(log_probabilities,
                      targets.flatten(),
                      /*weight=*/{},
                      at::Reduction::Mean,
                      /*ignore_index=*/-1);
}

}  // namespace swapline::trainer
