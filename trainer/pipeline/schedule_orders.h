// The order of one rank's actions, one function per family. The request has been checked.
#pragma once

#include "trainer/pipeline/schedule.h"

#include <vector>

namespace swapline::trainer {

struct OrderRequest {
  int rank = 0;
  int num_ranks = 1;
  int stages_per_rank = 1;
  int num_microbatches = 1;
  bool overlap = false;
};

std::vector<Action> gpipe_order(const OrderRequest& request);
// One stage per rank: 1F1B, and without a pipeline "none". Several: Interleaved1F1B.
std::vector<Action> one_forward_one_backward_order(const OrderRequest& request);
std::vector<Action> dual_pipe_v_order(const OrderRequest& request);

}  // namespace swapline::trainer
