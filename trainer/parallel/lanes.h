// What the ranks of one process do together: exchange rows of tensors, add up tensors. A lane is
// one of the devices that hold the same stage and share its experts. Each function takes one entry
// for each lane; copies run on streams of their own and take their time on the peer link.
#pragma once

#include "swapline/memory/shared_event.h"
#include "trainer/device.h"
#include "trainer/parallel/exchange.h"

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace swapline::trainer {

class Lanes;

// Tensors that are being added up over the lanes. Move-only; its steps in order, then it may go.
class Sum {
 public:
  Sum() = default;
  // Memory that copies still use must not go to others.
  ~Sum();
  Sum(Sum&&) noexcept = default;
  Sum& operator=(Sum&&) = delete;

  // Adds up each lane's share, as soon as the others' parts are there, and passes the sums round.
  void add();
  // The sums, usable on each lane's current stream.
  void wait();

 private:
  friend class Lanes;

  const Lanes* lanes_ = nullptr;
  PerLane tensors_;
  std::vector<PerLane> parts_;        // by owner of a share, then lane
  std::vector<SharedEvent> is_done_;  // as of Exchange
};

class Lanes {
 public:
  // `devices` must outlive the lanes. `name`: of the communication streams, in traces.
  Lanes(std::vector<Device*> devices, const std::string& name);

  size_t size() const { return devices_.size(); }
  Device& device(size_t lane) const { return *devices_[lane]; }

  // All-to-all of rows. Shipments that leave at once are coalesced where they are small. Each one's
  // matrices must stay as they are until it is waited for.
  Exchange exchange(std::vector<Shipment> shipments) const;
  // Every lane gets the sum, added in the order of the lanes, so all have the same bits. In place;
  // the tensors have equal sizes and no gaps. Like a ring, it moves 2 (n - 1) / n of the bytes over
  // each link; it needs the tensor's bytes once more meanwhile.
  void add_up(const PerLane& tensors) const;
  // The same step by step: parts are under way between them. The lanes must outlive it.
  Sum start_sum(PerLane tensors) const;

 private:
  friend class Sum;

  // Enqueues the copies, behind what each lane's current stream holds. All pairs of lanes copy at
  // the same time, as far as the links allow.
  std::vector<SharedEvent> move(std::vector<Hop> hops) const;
  at::Tensor share_of(const at::Tensor& tensor, size_t owner) const;

  std::vector<Device*> devices_;
  std::vector<c10::Stream> sending_;
  std::vector<c10::Stream> receiving_;
};

}  // namespace swapline::trainer
