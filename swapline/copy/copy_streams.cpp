// Byte copies between a device storage and pinned host memory, below autograd.
#include "swapline/copy/copy_streams.h"

#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline {
namespace {

c10::Stream side_stream(c10::Device device) {
  CopyStreams::check_device(device);
  return c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
}

}  // namespace

void CopyStreams::check_device(c10::Device device) {
  TORCH_CHECK(device.type() != c10::kCPU && device.type() != c10::kMeta,
              "CopyStreams: a device with memory of its own is needed, not ",
              device);
  TORCH_CHECK(device.has_index(), "CopyStreams: the device needs an index, not ", device);
  const c10::impl::VirtualGuardImpl guard(device.type());
  TORCH_CHECK(device.index() < guard.deviceCount(),
              "CopyStreams: there is no ",
              device,
              "; this process sees ",
              static_cast<int>(guard.deviceCount()),
              " of them");
}

CopyStreams::CopyStreams(c10::Device device, std::shared_ptr<StreamOrder> order)
    : device_(device),
      order_(order ? std::move(order) : std::make_shared<StreamOrder>()),
      d2h_stream_(side_stream(device)),
      h2d_stream_(side_stream(device)) {}

c10::Stream CopyStreams::compute_stream() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

SharedEvent CopyStreams::copy_out(const c10::Storage& device,
                                  PinnedBuffer& host,
                                  std::span<const CopyRange> ranges) {
  return copy(true, device, host, ranges);
}

SharedEvent CopyStreams::copy_in(const c10::Storage& device,
                                 PinnedBuffer& host,
                                 std::span<const CopyRange> ranges) {
  return copy(false, device, host, ranges);
}

SharedEvent CopyStreams::copy(bool out,
                              const c10::Storage& device,
                              PinnedBuffer& host,
                              std::span<const CopyRange> ranges) {
  TORCH_CHECK(device.device() == device_,
              "CopyStreams of ",
              device_,
              ": the storage is on ",
              device.device());
  const c10::Stream& stream = out ? d2h_stream_ : h2d_stream_;
  host.settle_former_uses();
  for (const SharedEvent& use : host.former_uses()) {
    order_->make_wait(stream, *use, Wait::kCopyAfterHostReuse);
  }
  const c10::StreamGuard on_stream(stream);
  size_t num_enqueued = 0;
  try {
    for (const CopyRange& range : ranges) {
      copy_range(out, device, host, range);
      ++num_enqueued;
    }
  } catch (...) {
    if (num_enqueued > 0) {
      host.add_use(record_event(stream));
    }
    throw;
  }
  SharedEvent done = record_event(stream);
  host.add_use(done);
  return done;
}

// On the current stream.
void CopyStreams::copy_range(bool out,
                             const c10::Storage& device,
                             const PinnedBuffer& host,
                             const CopyRange& range) {
  TORCH_CHECK(range.device_offset_bytes + range.bytes <= device.nbytes(),
              "CopyStreams: ",
              range.bytes,
              " bytes at ",
              range.device_offset_bytes,
              " of ",
              device.nbytes(),
              " on the device");
  // A byte tensor made here has a version counter of its own: no saved tensor sees a change.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto device_bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device_))
                                .set_(device,
                                      static_cast<int64_t>(range.device_offset_bytes),
                                      {static_cast<int64_t>(range.bytes)},
                                      {1});
  const auto host_bytes = host.bytes_at(range.host_offset_bytes, range.bytes);
  if (out) {
    host_bytes.copy_(device_bytes, /*non_blocking=*/true);
  } else {
    device_bytes.copy_(host_bytes, /*non_blocking=*/true);
  }
  ++(out ? stats_.num_copies_out : stats_.num_copies_in);
  (out ? stats_.bytes_out : stats_.bytes_in) += static_cast<int64_t>(range.bytes);
}

}  // namespace swapline
