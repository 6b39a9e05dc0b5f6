// The built-in pipeline schedules, under torchtitan's names.
#pragma once

#include "trainer/pipeline/schedule.h"

#include <string>
#include <vector>

namespace swapline::trainer {

struct ScheduleRequest {
  std::string name = "1F1B";
  int num_ranks = 1;
  int stages_per_rank = 0;  // 0: the schedule's own default
  int num_microbatches = 1;
  bool overlap = false;  // forward-backward overlap: steady pairs become one overlapped action
};

// "GPipe", "1F1B", "Interleaved1F1B", "DualPipeV".
std::vector<std::string> schedule_names();

// Every built-in schedule runs the backwards of each stage in the order of the micro-batches: so
// gradients add up in the order of the run without a pipeline, to the same bits. Between two ranks,
// tensors of one kind are sent in the order in which they are received; of both kinds together not.
//
// P ranks, M micro-batches:
// - GPipe: all forwards, then all backwards. Stage = rank. M in flight. No overlap.
// - 1F1B: as few forwards ahead as keep every rank busy. Stage = rank. In flight on rank r: P - r;
//   with overlap 2 (P - r), because a pair needs both its inputs at its start, so that a
//   micro-batch needs a whole pair for each stage forward and for each stage back.
// - Interleaved1F1B: stages_per_rank (2) stages, stage s on rank s mod P, micro-batches in groups
//   of P. Any M: what is left over is spread over the groups.
// - DualPipeV: two stages per rank, r and 2P - 1 - r; M >= 2P. In flight on each rank: 2P + 1 of
//   these half-size stages. Weight gradients are part of whole backwards.
// - One rank is no pipeline, whatever the name: the schedule "none", of one stage.
//
// Throws: std::invalid_argument saying what was found, what is allowed and which option to turn.
Schedule make_schedule(const ScheduleRequest& request);
// How many stages it has. Throws: as make_schedule.
int num_stages_of(const ScheduleRequest& request);

}  // namespace swapline::trainer
