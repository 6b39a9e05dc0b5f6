// Brings the rows of each expert to the host, which has to know them before tokens can travel. The
// copy starts when the router is done and runs beside what compute does next; whoever enqueues that
// first waits little or not at all.
#pragma once

#include "swapline/memory/host_pool.h"
#include "trainer/device.h"

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace swapline::trainer {

// Counts on their way.
class CountsCopy {
 public:
  CountsCopy() = default;
  // What nobody has read is waited for by the device: the copy reads its memory.
  ~CountsCopy();
  CountsCopy(CountsCopy&&) noexcept = default;
  CountsCopy& operator=(CountsCopy&&) = delete;

  // Rows of each expert. Blocks the host until they are there. Once.
  std::vector<int64_t> read();

 private:
  friend class CountCopies;

  at::Tensor ends_;
  PinnedBuffer buffer_;
};

// Of one device, on a stream of its own.
class CountCopies {
 public:
  // Both must outlive it and its copies.
  CountCopies(Device& device, HostPool& pool)
      : pool_(&pool), stream_(device.new_stream("counts out")) {}

  // `ends`: int32 [E], where each expert's rows end, behind the current stream's work.
  CountsCopy start(const at::Tensor& ends) const;

 private:
  HostPool* pool_;
  c10::Stream stream_;
};

}  // namespace swapline::trainer
