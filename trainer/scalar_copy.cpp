// Tensor::item() would queue its copy behind everything enqueued since, and wait for all of that.
#include "trainer/scalar_copy.h"

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::trainer {

ScalarCopy::ScalarCopy(const std::vector<at::Tensor>& scalars, HostPool* pool) {
  if (pool == nullptr) {
    for (const at::Tensor& scalar : scalars) {
      values_.push_back(scalar.item<double>());
    }
    return;
  }
  std::vector<at::Tensor> floats;
  for (const at::Tensor& scalar : scalars) {
    floats.push_back(scalar.to(at::kFloat));
  }
  const at::Tensor device = at::stack(floats);
  values_.resize(scalars.size());
  buffer_ = pool->allocate(device.nbytes());
  buffer_.wait_for_uses();
  buffer_.bytes_at(0, device.nbytes()).view(at::kFloat).copy_(device, /*non_blocking=*/true);
  buffer_.add_use(
      record_event(c10::impl::VirtualGuardImpl(device.device().type()).getStream(device.device())));
}

std::vector<double> ScalarCopy::read() {
  if (buffer_) {
    buffer_.wait_for_uses();
    const auto* floats = static_cast<const float*>(buffer_.data());
    values_.assign(floats, floats + values_.size());
  }
  return values_;
}

}  // namespace swapline::trainer
