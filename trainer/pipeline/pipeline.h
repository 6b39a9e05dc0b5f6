// Carries out a schedule: runs each rank's actions in its order, as soon as what they need from
// others is under way. One host thread drives all ranks; each device's host time is its own.
#pragma once

#include "trainer/parallel/peer_links.h"
#include "trainer/pipeline/schedule.h"
#include "trainer/pipeline/stage_runner.h"

#include <functional>
#include <map>
#include <vector>

namespace swapline::trainer {

class Pipeline {
 public:
  // `hidden_sizes`, `dtype`: of what travels between stages. `runner` must outlive the pipeline.
  Pipeline(Schedule schedule,
           StageRunner& runner,
           std::vector<int64_t> hidden_sizes,
           at::ScalarType dtype);

  // All forwards and backwards of a step. `after_backward` is told the rank. After an exception the
  // pipeline holds what the broken step left, and cannot be run again.
  void run(const std::function<void(size_t rank)>& after_backward);

  const Schedule& schedule() const { return schedule_; }

 private:
  bool is_ready(size_t rank) const;
  void run_action(size_t rank);
  void check_end() const;
  void expect(size_t rank, size_t index);
  PerLane receive(Transfer::Kind kind, const Pass& pass, const Action& action);
  void pass_on(const Pass& pass, Transfer::Kind kind, PerLane tensors);
  size_t device(size_t rank, size_t lane) const { return rank * num_lanes_ + lane; }

  Schedule schedule_;
  StageRunner& runner_;
  std::vector<int64_t> hidden_sizes_;
  at::ScalarType dtype_;
  size_t num_lanes_;
  PeerLinks links_;
  std::vector<size_t> next_;  // by rank: the action that comes next
  // From a stage to its neighbour on the same device: no copy.
  std::map<std::pair<Transfer::Kind, int64_t>, PerLane> handed_over_;
};

}  // namespace swapline::trainer
