// One layer's run for one micro-batch on all lanes that share its experts, in pieces: between them
// counts or tokens are under way, and other work may be enqueued. A piece waits for what the one
// before it sent off.
//
// Forward: route, attend, experts, merge. Backward: attend_again with send_gradients,
// experts_backward, attend_backward. The weights are multiplied where the experts are, so merging
// needs nothing of the forward: on the way to the experts, backward sends the tokens of the
// recompute and the gradients as one.
#pragma once

#include "swapline/layer_input/saved_input.h"
#include "trainer/models/layer.h"
#include "trainer/parallel/lanes.h"
#include "trainer/pipeline/expert_counts.h"

#include <optional>
#include <vector>

namespace swapline::trainer {

// The layer on each lane, and the input kept there if it runs again in backward.
struct LayerOnLanes {
  std::vector<const ExpertLayer*> layers;
  // Communication of the forward and of the backward that may run at the same time.
  const Lanes* forward_lanes = nullptr;
  const Lanes* backward_lanes = nullptr;
  const std::vector<CountCopies>* counts = nullptr;  // by lane
  bool recomputes = true;  // else the forward's graphs stay for the backward
};

class ExpertRun {
 public:
  explicit ExpertRun(LayerOnLanes layer);

  // Forward, [B, T, D] on each lane. route's caller keeps the inputs, if they are recomputed from.
  // Only attend makes the host wait, for the counts of all lanes.
  void route(PerLane inputs);
  void attend();
  void experts();
  PerLane merge();

  // Backward, from the gradients of merge's result to those of the inputs. `inputs` as given to
  // route; empty without recompute, where attend_again does nothing.
  void attend_again(PerLane inputs);
  void send_gradients(const PerLane& gradients);
  void experts_backward();
  PerLane attend_backward();

 private:
  void run_route(PerLane inputs, bool is_first_run);
  void run_attend();
  void run_experts(const PerLane& tokens, const PerLane& weights);
  std::vector<std::vector<int64_t>> counts_at(size_t lane) const;
  RowCounts rows_to_experts() const;
  RowCounts rows_back() const;
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
  std::optional<Exchange> under_way_;
};

}  // namespace swapline::trainer
