// Brings a few numbers from the device to the host without making either wait for the other.
#pragma once

#include "swapline/memory/host_pool.h"
#include "trainer/device.h"

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// Numbers on their way to the host.
class ScalarCopy {
 public:
  ScalarCopy() = default;
  // Enqueues the copy of `scalars`, one-element tensors on the device, on the current stream.
  // `pool`: nullptr on the CPU; must outlive the copy.
  ScalarCopy(const std::vector<at::Tensor>& scalars, HostPool* pool);

  // Blocks the host until they are there. Not in a dry run, where there are none.
  std::vector<double> read();

 private:
  std::vector<double> values_;
  PinnedBuffer buffer_;
};

}  // namespace swapline::trainer
