// Byte copies between a device storage and pinned host memory, below autograd.
#include "swapline/copy/copy_streams.h"

#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline {
namespace {

c10::Stream side_stream(c10::Device device) {
  TORCH_CHECK(device.type() != c10::kCPU && device.type() != c10::kMeta,
              "CopyStreams: a device with memory of its own is needed, not ",
              device);
  TORCH_CHECK(device.has_index(), "CopyStreams: the device needs an index, not ", device);
  return c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
}

}  // namespace

CopyStreams::CopyStreams(c10::Device device, std::shared_ptr<StreamOrder> order)
    : device_(device),
      order_(order ? std::move(order) : std::make_shared<StreamOrder>()),
      d2h_stream_(side_stream(device)),
      h2d_stream_(side_stream(device)) {}

c10::Stream CopyStreams::compute_stream() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

SharedEvent CopyStreams::copy_out(const c10::Storage& device,
                                  size_t device_offset_bytes,
                                  PinnedBuffer& host,
                                  size_t host_offset_bytes,
                                  size_t bytes) {
  return copy(true, device, device_offset_bytes, host, host_offset_bytes, bytes);
}

SharedEvent CopyStreams::copy_in(const c10::Storage& device,
                                 size_t device_offset_bytes,
                                 PinnedBuffer& host,
                                 size_t host_offset_bytes,
                                 size_t bytes) {
  return copy(false, device, device_offset_bytes, host, host_offset_bytes, bytes);
}

SharedEvent CopyStreams::copy(bool out,
                              const c10::Storage& device,
                              size_t device_offset_bytes,
                              PinnedBuffer& host,
                              size_t host_offset_bytes,
                              size_t bytes) {
  TORCH_CHECK(device.device() == device_,
              "CopyStreams of ",
              device_,
              ": the storage is on ",
              device.device());
  TORCH_CHECK(
      device_offset_bytes + bytes <= device.nbytes() && host_offset_bytes + bytes <= host.bytes(),
      "CopyStreams: ",
      bytes,
      " bytes at ",
      device_offset_bytes,
      " of ",
      device.nbytes(),
      " on the device and at ",
      host_offset_bytes,
      " of ",
      host.bytes(),
      " on the host");
  const c10::Stream& stream = out ? d2h_stream_ : h2d_stream_;
  host.settle_former_uses();
  for (const SharedEvent& use : host.former_uses()) {
    order_->make_wait(stream, *use, Wait::kCopyAfterHostReuse);
  }
  // A byte tensor made here has a version counter of its own: no saved tensor sees a change.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard on_stream(stream);
  const auto device_bytes = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(device_))
                                .set_(device,
                                      static_cast<int64_t>(device_offset_bytes),
                                      {static_cast<int64_t>(bytes)},
                                      {1});
  const auto host_bytes = at::from_blob(static_cast<char*>(host.data()) + host_offset_bytes,
                                        {static_cast<int64_t>(bytes)},
                                        at::TensorOptions().dtype(at::kByte));
  if (out) {
    host_bytes.copy_(device_bytes, /*non_blocking=*/true);
  } else {
    device_bytes.copy_(host_bytes, /*non_blocking=*/true);
  }
  SharedEvent done = record_event(stream);
  host.add_use(done);
  ++(out ? stats_.num_copies_out : stats_.num_copies_in);
  (out ? stats_.bytes_out : stats_.bytes_in) += static_cast<int64_t>(bytes);
  return done;
}

}  // namespace swapline
