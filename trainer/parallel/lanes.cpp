// Collectives as peer copies. All lanes belong to one host thread: what orders them is events.
#include "trainer/parallel/lanes.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

namespace swapline::trainer {

Lanes::Lanes(std::vector<Device*> devices, const std::string& name) : devices_(std::move(devices)) {
  for (Device* device : devices_) {
    sending_.push_back(device->new_stream(name + " out"));
    receiving_.push_back(device->new_stream(name + " in"));
  }
}

std::vector<SharedEvent> Lanes::move(std::vector<Hop> hops) const {
  for (size_t lane = 0; lane < size(); ++lane) {
    const SharedEvent before = record_event(devices_[lane]->current_stream());
    before->block(sending_[lane]);
    before->block(receiving_[lane]);
  }
  // Round k: each lane sends to the k-th behind it, so that no two share a sender or receiver.
  const auto round_of = [&](const Hop& hop) { return (hop.to + size() - hop.from) % size(); };
  std::stable_sort(hops.begin(), hops.end(), [&](const Hop& a, const Hop& b) {
    return round_of(a) < round_of(b);
  });
  for (const Hop& hop : hops) {
    const c10::Stream in = receiving_[hop.to];
    const c10::MultiStreamGuard guard(hop.from == hop.to
                                          ? std::vector<c10::Stream>{in}
                                          : std::vector<c10::Stream>{sending_[hop.from], in});
    hop.destination.copy_(hop.source, /*non_blocking=*/true);
  }
  std::vector<SharedEvent> is_done;
  for (size_t lane = 0; lane < size(); ++lane) {
    is_done.push_back(record_event(sending_[lane]));
    is_done.push_back(record_event(receiving_[lane]));
  }
  return is_done;
}

Exchange Lanes::exchange(std::vector<Shipment> shipments) const {
  const c10::NoGradGuard no_grad;
  Exchange exchange(std::move(shipments));
  exchange.hops_ = exchange.is_packed_ ? exchange.pack() : exchange.lay_out();
  exchange.is_done_ = move(exchange.hops_);
  return exchange;
}

at::Tensor Lanes::share_of(const at::Tensor& tensor, size_t owner) const {
  const int64_t numel = tensor.numel();
  const auto num_lanes = static_cast<int64_t>(size());
  const int64_t share = (numel + num_lanes - 1) / num_lanes;
  const int64_t begin = std::min(numel, static_cast<int64_t>(owner) * share);
  return tensor.view({numel}).narrow(0, begin, std::min(numel - begin, share));
}

void Lanes::add_up(const PerLane& tensors) const {
  Sum sum = start_sum(tensors);
  sum.add();
  sum.wait();
}

Sum Lanes::start_sum(PerLane tensors) const {
  const c10::NoGradGuard no_grad;
  Sum sum;
  sum.lanes_ = this;
  sum.tensors_ = std::move(tensors);
  sum.parts_.resize(size());
  std::vector<Hop> hops;
  for (size_t owner = 0; owner < size(); ++owner) {
    for (size_t lane = 0; lane < size(); ++lane) {
      const at::Tensor own = share_of(sum.tensors_[owner], owner);
      sum.parts_[owner].push_back(lane == owner ? own : at::empty_like(own));
      if (lane != owner) {
        hops.push_back({lane, owner, share_of(sum.tensors_[lane], owner), sum.parts_[owner][lane]});
      }
    }
  }
  if (!hops.empty()) {
    sum.is_done_ = move(std::move(hops));
  }
  return sum;
}

Sum::~Sum() {
  wait();
}

void Sum::add() {
  const c10::NoGradGuard no_grad;
  wait_for(is_done_);
  std::vector<Hop> hops;
  for (size_t owner = 0; owner < parts_.size() && parts_.size() > 1; ++owner) {
    const PerLane& parts = parts_[owner];
    at::Tensor own = lanes_->share_of(tensors_[owner], owner);
    at::Tensor sum = parts.front();
    for (size_t lane = 1; lane + 1 < parts.size(); ++lane) {
      sum = at::add(sum, parts[lane]);
    }
    // In place: the share itself is among what is still to be added, or already in the sum.
    at::add_out(own, sum, parts.back());
    for (size_t lane = 0; lane < parts.size(); ++lane) {
      if (lane != owner) {
        hops.push_back({owner, lane, own, lanes_->share_of(tensors_[lane], owner)});
      }
    }
  }
  parts_.clear();
  if (!hops.empty()) {
    is_done_ = lanes_->move(std::move(hops));
  }
}

void Sum::wait() {
  wait_for(is_done_);
  tensors_.clear();
}

}  // namespace swapline::trainer
