// Brings batches of tokens to the devices without making the host wait for it.
#pragma once

#include "swapline/memory/host_pool.h"
#include "trainer/device.h"
#include "trainer/text_data.h"

#include <deque>
#include <vector>

namespace swapline::trainer {

// Copies small host tensors to one device through pinned buffers.
class TokenCopies {
 public:
  // `device` and `pool` must outlive it. `pool`: nullptr on the CPU.
  TokenCopies(Device& device, HostPool* pool) : device_(&device), pool_(pool) {}

  // The tensor on the device; its copy is enqueued on the current stream.
  at::Tensor to_device(const at::Tensor& host);

 private:
  PinnedBuffer free_buffer(size_t bytes);

  Device* device_;
  HostPool* pool_;
  std::deque<PinnedBuffer> buffers_;  // oldest use first
};

// The batches of one step, on the host: the same ones in the same order, however they are spread.
class StepBatches {
 public:
  StepBatches(TextData& data, int64_t num_microbatches, int64_t num_lanes, int64_t num_sequences);

  // Reads the next step's batches.
  void advance();
  const Batch& of(int microbatch, size_t lane) const;

 private:
  TextData* data_;
  size_t num_microbatches_;
  size_t num_lanes_;
  int64_t num_sequences_;
  std::vector<Batch> batches_;
};

}  // namespace swapline::trainer
