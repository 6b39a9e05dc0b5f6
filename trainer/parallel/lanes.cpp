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
namespace {

at::Tensor empty_rows(const at::Tensor& like, int64_t num_rows, const Device& device) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes.front() = num_rows;
  return at::empty(sizes, like.options().device(device.torch_device()));
}

int64_t sum_to(const RowCounts& rows, size_t to) {
  int64_t sum = 0;
  for (const std::vector<int64_t>& from : rows) {
    sum += from[to];
  }
  return sum;
}

// On the current stream of each event's device.
void wait_for(std::vector<SharedEvent>& is_done) {
  for (const SharedEvent& event : is_done) {
    const c10::Device device = event->device();
    event->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  is_done.clear();
}

}  // namespace

Exchange::~Exchange() {
  wait();
}

std::vector<PerLane> Exchange::wait() {
  wait_for(is_done_);
  sent_.clear();
  return std::move(arriving_);
}

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

Exchange Lanes::exchange(const std::vector<PerLane>& tensors, const RowCounts& rows) const {
  const c10::NoGradGuard no_grad;
  Exchange exchange;
  exchange.sent_ = tensors;
  std::vector<Hop> hops;
  for (const PerLane& tensor : tensors) {
    PerLane arriving;
    for (size_t lane = 0; lane < size(); ++lane) {
      arriving.push_back(empty_rows(tensor[lane], sum_to(rows, lane), *devices_[lane]));
    }
    std::vector<int64_t> filled(size(), 0);
    for (size_t from = 0; from < size(); ++from) {
      int64_t taken = 0;
      for (size_t to = 0; to < size(); ++to) {
        const int64_t count = rows[from][to];
        hops.push_back({from,
                        to,
                        tensor[from].detach().narrow(0, taken, count),
                        arriving[to].narrow(0, filled[to], count)});
        taken += count;
        filled[to] += count;
      }
    }
    exchange.arriving_.push_back(std::move(arriving));
  }
  exchange.is_done_ = move(std::move(hops));
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
  std::vector<Lanes::Hop> hops;
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
