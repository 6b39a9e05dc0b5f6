// The two copy streams of a device. Copies are of bytes: they know nothing of dtypes or views.
#pragma once

#include "swapline/copy/stream_order.h"
#include "swapline/copy/timed_span.h"
#include "swapline/export.h"
#include "swapline/memory/host_pool.h"
#include "swapline/memory/shared_event.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

namespace swapline {

// Bytes of a device storage and the bytes of a pinned buffer that they are copied to or from.
struct CopyRange {
  size_t device_offset_bytes = 0;
  size_t host_offset_bytes = 0;
  size_t bytes = 0;
};

struct CopyStats {
  int64_t num_copies_out = 0;  // device to host
  int64_t num_copies_in = 0;   // host to device
  int64_t bytes_out = 0;
  int64_t bytes_in = 0;
};

// Thread-safe as far as one device's work is ordered by its streams.
class SWAPLINE_API CopyStreams {
 public:
  // Throws c10::Error for a device that is not there or has no memory of its own.
  static void check_device(c10::Device device);

  // `order` is asked for every wait; default: a plain StreamOrder.
  explicit CopyStreams(c10::Device device, std::shared_ptr<StreamOrder> order = nullptr);

  c10::Device device() const { return device_; }
  c10::Stream d2h_stream() const { return d2h_stream_; }
  c10::Stream h2d_stream() const { return h2d_stream_; }
  // The stream that is current on the device for the calling thread: where compute is enqueued.
  c10::Stream compute_stream() const;
  StreamOrder& order() { return *order_; }

  // Enqueues the copies on the d2h stream, behind `host`'s former uses, and returns the one event
  // recorded behind them (also added to `host`'s uses). The caller has ordered the d2h stream after
  // the producer and keeps the device storage alive until the event is done. Throws what a copy
  // throws: those before it may be in flight then, and `host` knows of them.
  SharedEvent copy_out(const c10::Storage& device,
                       PinnedBuffer& host,
                       std::span<const CopyRange> ranges);
  SharedEvent copy_out(const c10::Storage& device, PinnedBuffer& host, const CopyRange& range) {
    return copy_out(device, host, {&range, 1});
  }
  // The other direction, on the h2d stream.
  SharedEvent copy_in(const c10::Storage& device,
                      PinnedBuffer& host,
                      std::span<const CopyRange> ranges);
  SharedEvent copy_in(const c10::Storage& device, PinnedBuffer& host, const CopyRange& range) {
    return copy_in(device, host, {&range, 1});
  }

  const CopyStats& stats() const { return stats_; }

 private:
  SharedEvent copy(bool out,
                   const c10::Storage& device,
                   PinnedBuffer& host,
                   std::span<const CopyRange> ranges);
  void copy_range(bool out,
                  const c10::Storage& device,
                  const PinnedBuffer& host,
                  const CopyRange& range);

  c10::Device device_;
  std::shared_ptr<StreamOrder> order_;
  c10::Stream d2h_stream_;
  c10::Stream h2d_stream_;
  CopyStats stats_;
};

}  // namespace swapline
