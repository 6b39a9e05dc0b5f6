// A copy from pageable memory makes the host wait for everything before it on the stream, which
// would end the host's run ahead of the device once a batch. Hence pinned buffers, used in turn.
#include "trainer/batch_loader.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::trainer {
namespace {

bool is_in_use(const PinnedBuffer& buffer) {
  return std::any_of(buffer.uses().begin(), buffer.uses().end(), [](const SharedEvent& use) {
    return !use->query();
  });
}

}  // namespace

BatchLoader::BatchLoader(TextData& data,
                         Device& device,
                         HostPool* pool,
                         int64_t sequences_per_batch)
    : data_(&data), device_(&device), pool_(pool), sequences_per_batch_(sequences_per_batch) {}

Batch BatchLoader::next() {
  const Batch batch = data_->next_batch(sequences_per_batch_);
  return {to_device(batch.tokens), to_device(batch.targets)};
}

PinnedBuffer BatchLoader::free_buffer(size_t bytes) {
  if (buffers_.empty() || is_in_use(buffers_.front())) {
    return pool_->allocate(bytes);
  }
  PinnedBuffer buffer = std::move(buffers_.front());
  buffers_.pop_front();
  return buffer;
}

at::Tensor BatchLoader::to_device(const at::Tensor& host) {
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
  tokens.copy_(at::from_blob(buffer.data(), host.sizes(), host.options()), /*non_blocking=*/true);
  buffer.add_use(record_event(c10::impl::VirtualGuardImpl(device.type()).getStream(device)));
  buffers_.push_back(std::move(buffer));
  return tokens;
}

}  // namespace swapline::trainer
