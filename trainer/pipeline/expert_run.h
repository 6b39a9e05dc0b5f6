// One layer's run for one micro-batch on all lanes that share its experts, in pieces: between them
// counts or tokens are under way, and other work may be enqueued. A piece gives what is to travel,
// and the next one takes what has arrived.
//
// Forward: route, attend, experts, merge. Backward: attend_again with send_gradients,
// experts_backward, attend_backward. The weights are multiplied where the experts are, so merging
// needs nothing of the forward: on the way to the experts, backward sends the tokens of the
// recompute and the gradients as one.
#pragma once

#include "swapline/layer_input/saved_input.h"
#include "trainer/models/layer.h"
#include "trainer/parallel/exchange.h"
#include "trainer/pipeline/expert_counts.h"

#include <cstdint>
#include <vector>

namespace swapline::trainer {

// The layer on each lane, and how its input is kept for backward.
struct LayerOnLanes {
  std::vector<const ExpertLayer*> layers;
  const std::vector<CountCopies>* counts = nullptr;  // by lane
  bool recomputes = true;  // else the forward's graphs stay for the backward
};

class ExpertRun {
 public:
  // The matrices of a shipment on each lane.
  using Arrived = std::vector<PerLane>;

  explicit ExpertRun(LayerOnLanes layer);

  // Forward, [B, T, D] on each lane. route's caller keeps the inputs, if they are recomputed from.
  // Only attend makes the host wait, for the counts of all lanes.
  void route(PerLane inputs);
  // Of what attend will send from a lane, as route knows it.
  int64_t num_bytes_to_experts() const;
  Shipment attend();
  Shipment experts(Arrived arrived);
  PerLane merge(Arrived arrived);

  // Backward, from the gradients of merge's result to those of the inputs. `inputs` as given to
  // route; empty without recompute, where attend_again does nothing.
  void attend_again(PerLane inputs);
  Shipment send_gradients(const PerLane& gradients);
  Shipment experts_backward(Arrived arrived);
  PerLane attend_backward(Arrived arrived);

 private:
  void run_route(PerLane inputs, bool is_first_run);
  void run_attend();
  void run_experts(PerLane tokens, PerLane weights);
  std::vector<int64_t> counts_at(size_t lane) const;
  size_t num_lanes() const { return layer_.layers.size(); }

  LayerOnLanes layer_;
  std::vector<std::vector<int64_t>> counts_;  // by lane: rows of each expert
  std::vector<CountsCopy> counts_under_way_;  // by lane; none where they are known
  PerLane inputs_;                            // leaves of attend's graphs, where there are any
  std::vector<Routed> routed_;
  std::vector<Attended> attended_;
  PerLane tokens_;  // leaves of the experts' graphs
  PerLane weights_;
  PerLane expert_outputs_;
  PerLane output_gradients_;
};

}  // namespace swapline::trainer
