// A copy from pageable memory makes the host wait for everything before it on the stream, which
// would end the host's run ahead of the device once a batch. Hence pinned buffers, used in turn.
#include "trainer/batch_loader.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty_like.h>

namespace swapline::trainer {
namespace {

bool is_in_use(const PinnedBuffer& buffer) {
  return std::any_of(buffer.uses().begin(), buffer.uses().end(), [](const SharedEvent& use) {
    return !is_done(use);
  });
}

}  // namespace

PinnedBuffer TokenCopies::free_buffer(size_t bytes) {
  if (buffers_.empty() || is_in_use(buffers_.front())) {
    return pool_->allocate(bytes);
  }
  PinnedBuffer buffer = std::move(buffers_.front());
  buffers_.pop_front();
  return buffer;
}

at::Tensor TokenCopies::to_device(const at::Tensor& host) {
  if (pool_ == nullptr) {
    return host;
  }
  PinnedBuffer buffer = free_buffer(host.nbytes());
  buffer.wait_for_uses();
  if (!device_->is_dry_run()) {  // there, pinned memory is an address only
    std::memcpy(buffer.data(), host.const_data_ptr(), host.nbytes());
  }
  const c10::Device device = device_->torch_device();
  at::Tensor tokens = at::empty_like(host, host.options().device(device));
  const at::Tensor pinned =
      buffer.bytes_at(0, host.nbytes()).view(host.scalar_type()).view(host.sizes());
  tokens.copy_(pinned, /*non_blocking=*/true);
  buffer.add_use(record_event(device_->current_stream()));
  buffers_.push_back(std::move(buffer));
  return tokens;
}

StepBatches::StepBatches(TextData& data,
                         int64_t num_microbatches,
                         int64_t num_lanes,
                         int64_t num_sequences)
    : data_(&data),
      num_microbatches_(static_cast<size_t>(num_microbatches)),
      num_lanes_(static_cast<size_t>(num_lanes)),
      num_sequences_(num_sequences) {}

void StepBatches::advance() {
  batches_.clear();
  for (size_t i = 0; i < num_microbatches_ * num_lanes_; ++i) {
    batches_.push_back(data_->next_batch(num_sequences_));
  }
}

const Batch& StepBatches::of(int microbatch, size_t lane) const {
  return batches_[static_cast<size_t>(microbatch) * num_lanes_ + lane];
}

}  // namespace swapline::trainer
