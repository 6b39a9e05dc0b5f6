// Rows of matrices under way between lanes, all to all. Small ones travel packed, however many
// matrices there are: one kernel gathers what a lane sends, one copy takes it to each peer, one
// kernel puts what arrives in its place.
#pragma once

#include "swapline/memory/shared_event.h"
#include "trainer/parallel/row_route.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// One entry for each lane.
using PerLane = std::vector<at::Tensor>;

// Matrices whose rows go the same way; without gaps.
struct Shipment {
  std::vector<PerLane> matrices;
  RowRoute route;

  // On the lane that has most.
  int64_t num_bytes() const;
};

// A copy between devices, or on one.
struct Hop {
  size_t from = 0;
  size_t to = 0;
  at::Tensor source;
  at::Tensor destination;
};

// On the current stream of each event's device; the events are then forgotten.
void wait_for(std::vector<SharedEvent>& events);

class Exchange {
 public:
  Exchange() = default;
  // Memory that copies still use must not go to others: what nobody has waited for is waited for.
  ~Exchange();
  Exchange(Exchange&&) noexcept = default;
  Exchange& operator=(Exchange&&) = delete;

  // The matrices of each shipment as they have arrived, usable on each lane's current stream. What
  // was sent is let go of.
  std::vector<std::vector<PerLane>> wait();

 private:
  friend class Lanes;

  // A matrix of a shipment, and what has its rows on each receiving lane.
  struct Cargo {
    PerLane sent;
    RowRoute route;
    std::vector<std::vector<Pieces>> pieces;  // by receiver, then sender
    PerLane landed;                           // by receiver, where the copies put rows in place
  };

  explicit Exchange(std::vector<Shipment> shipments);
  size_t num_lanes() const { return cargo_.front().sent.size(); }
  // Enqueue what comes before the copies, and name them.
  std::vector<Hop> pack();
  std::vector<Hop> lay_out();
  void lay_out(Cargo& cargo, std::vector<Hop>& hops);
  void land_in_place(Cargo& cargo,
                     size_t to,
                     const std::vector<Pieces>& outgoing,
                     std::vector<Hop>& hops);
  // What has arrived on a lane, by matrix.
  std::vector<at::Tensor> put_in_place(size_t lane) const;

  std::vector<size_t> num_matrices_;  // of each shipment
  std::vector<Cargo> cargo_;          // of all shipments
  std::vector<size_t> widest_first_;  // so packed, all but the narrowest are aligned
  bool is_packed_ = false;
  std::vector<Hop> hops_;             // what the copies use
  std::vector<SharedEvent> is_done_;  // one for each lane's sending, one for its receiving
};

}  // namespace swapline::trainer
