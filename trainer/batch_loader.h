// Brings batches of tokens to the device without making the host wait for it.
#pragma once

#include "swapline/memory/host_pool.h"
#include "trainer/device.h"
#include "trainer/text_data.h"

#include <deque>

namespace swapline::trainer {

class BatchLoader {
 public:
  // `data`, `device` and `pool` must outlive the loader. `pool`: nullptr on the CPU.
  BatchLoader(TextData& data, Device& device, HostPool* pool, int64_t sequences_per_batch);

  // The next batch, on the device; its copy is enqueued on the current stream.
  Batch next();

 private:
  at::Tensor to_device(const at::Tensor& host);
  PinnedBuffer free_buffer(size_t bytes);

  TextData* data_;
  Device* device_;
  HostPool* pool_;
  int64_t sequences_per_batch_;
  std::deque<PinnedBuffer> buffers_;  // oldest use first
};

}  // namespace swapline::trainer
