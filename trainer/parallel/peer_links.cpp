// Whoever of sender and receiver comes second enqueues the copy; the streams order the rest.
#include "trainer/parallel/peer_links.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

namespace swapline::trainer {

PeerLinks::PeerLinks(std::vector<Device*> devices)
    : devices_(std::move(devices)), sent_(devices_.size()) {}

c10::Stream PeerLinks::stream_of(size_t device, size_t other, const Parcel& parcel) {
  const auto key = std::make_tuple(device, other, parcel.kind);
  const auto found = streams_.find(key);
  if (found != streams_.end()) {
    return found->second;
  }
  const std::string kind = parcel.kind == Transfer::Kind::kActivation ? "activations" : "gradients";
  const c10::Stream stream =
      devices_[device]->new_stream(kind + " with device " + std::to_string(other));
  return streams_.emplace(key, stream).first->second;
}

void PeerLinks::expect(
    const Parcel& parcel, size_t from, size_t to, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (places_.count(parcel) != 0 || arrived_.count(parcel) != 0) {
    return;
  }
  const Device& device = *devices_[to];
  at::Tensor tensor =
      at::empty(sizes, at::TensorOptions().dtype(dtype).device(device.torch_device()));
  places_.emplace(parcel, Place{from, to, tensor, record_event(device.current_stream())});
  if (departures_.count(parcel) != 0) {
    copy(parcel);
  }
}

void PeerLinks::send(const Parcel& parcel, size_t from, at::Tensor tensor) {
  departures_.emplace(parcel, Departure{tensor, record_event(devices_[from]->current_stream())});
  sent_[from].push_back({parcel, std::move(tensor), nullptr});
  if (places_.count(parcel) != 0) {
    copy(parcel);
  }
}

bool PeerLinks::is_sent(const Parcel& parcel) const {
  return departures_.count(parcel) != 0 || arrived_.count(parcel) != 0;
}

void PeerLinks::copy(const Parcel& parcel) {
  auto place = places_.extract(parcel);
  auto departure = departures_.extract(parcel);
  const Place& to = place.mapped();
  const c10::Stream out = stream_of(to.from, to.to, parcel);
  const c10::Stream in = stream_of(to.to, to.from, parcel);
  departure.mapped().is_made->block(out);
  place.mapped().is_free->block(in);
  {
    const c10::MultiStreamGuard on_streams({out, in});
    to.tensor.copy_(departure.mapped().tensor, /*non_blocking=*/true);
  }
  for (Sent& sent : sent_[to.from]) {
    if (sent.parcel == parcel && !sent.is_copied) {
      sent.is_copied = record_event(out);
    }
  }
  arrived_.emplace(parcel, std::make_pair(to.tensor, record_event(in)));
}

PeerLinks::~PeerLinks() {
  finish();
  while (!arrived_.empty()) {
    receive(arrived_.begin()->first);
  }
}

at::Tensor PeerLinks::receive(const Parcel& parcel) {
  auto found = arrived_.extract(parcel);
  TORCH_CHECK(!found.empty(), "PeerLinks: a tensor is received before it was sent");
  auto& [tensor, is_there] = found.mapped();
  is_there->block(c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()));
  return tensor;
}

void PeerLinks::begin_action(size_t from) {
  let_go(from, 1);
  for (Sent& sent : sent_[from]) {
    ++sent.actions;
  }
}

void PeerLinks::finish() {
  for (size_t device = 0; device < devices_.size(); ++device) {
    let_go(device, 0);
  }
}

void PeerLinks::let_go(size_t from, int least_actions) {
  std::erase_if(sent_[from], [&](Sent& sent) {
    const bool goes = sent.is_copied && sent.actions >= least_actions;
    if (goes) {
      sent.is_copied->block(devices_[from]->current_stream());
    }
    return goes;
  });
}

}  // namespace swapline::trainer
