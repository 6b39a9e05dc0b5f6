// GPipe, 1F1B and interleaved 1F1B: one order of forwards and one of backwards, woven together.
// They differ only in how many forwards run ahead of the first backward.
#include "trainer/pipeline/schedule_orders.h"

#include <algorithm>
#include <cstddef>

namespace swapline::trainer {
namespace {

// Micro-batches run in groups: a rank takes a whole group through one of its stages before it turns
// to the next. A group smaller than the pipeline would run dry on the way round, so none is (unless
// there are too few micro-batches): the groups are as many as fit, and share what is left over.
std::vector<int> group_sizes(int num_microbatches, int num_ranks) {
  const int num_groups = std::max(1, num_microbatches / num_ranks);
  std::vector<int> sizes(static_cast<std::size_t>(num_groups), num_microbatches / num_groups);
  for (int group = 0; group < num_microbatches % num_groups; ++group) {
    ++sizes[static_cast<std::size_t>(group)];
  }
  return sizes;
}

enum class Direction { kForward, kBackward };

std::vector<Pass> passes_of(const OrderRequest& request, Direction direction) {
  std::vector<Pass> passes;
  int first = 0;
  for (const int size : group_sizes(request.num_microbatches, request.num_ranks)) {
    for (int turn = 0; turn < request.stages_per_rank; ++turn) {
      const int chunk =
          direction == Direction::kForward ? turn : request.stages_per_rank - 1 - turn;
      for (int microbatch = first; microbatch < first + size; ++microbatch) {
        passes.push_back({chunk * request.num_ranks + request.rank, microbatch});
      }
    }
    first += size;
  }
  return passes;
}

std::vector<Action> weave(const OrderRequest& request, int num_ahead) {
  const std::vector<Pass> forwards = passes_of(request, Direction::kForward);
  const std::vector<Pass> backwards = passes_of(request, Direction::kBackward);
  const std::size_t ahead = std::min(forwards.size(), static_cast<std::size_t>(num_ahead));
  std::vector<Action> actions;
  for (std::size_t at = 0; at < ahead; ++at) {
    actions.push_back(Action::forward_of(forwards[at]));
  }
  for (std::size_t at = 0; at < backwards.size(); ++at) {
    const bool has_partner = at + ahead < forwards.size();
    if (has_partner && request.overlap) {
      actions.push_back(Action::overlapped(forwards[at + ahead], backwards[at]));
      continue;
    }
    if (has_partner) {
      actions.push_back(Action::forward_of(forwards[at + ahead]));
    }
    actions.push_back(Action::backward_of(backwards[at]));
  }
  return actions;
}

}  // namespace

std::vector<Action> gpipe_order(const OrderRequest& request) {
  return weave(request, request.num_microbatches);
}

std::vector<Action> one_forward_one_backward_order(const OrderRequest& request) {
  const int ranks_after = request.num_ranks - 1 - request.rank;
  const bool is_interleaved = request.stages_per_rank > 1;
  // Per rank below, a micro-batch's way there and back takes a forward and a backward: one round,
  // so one forward ahead. When each way takes a whole pair it is two. An interleaved rank has the
  // forwards of its other stages to fill the wait for the first backward with: two as well.
  const int per_rank = is_interleaved || request.overlap ? 2 : 1;
  const int to_last_stage =
      (request.stages_per_rank - 1) * group_sizes(request.num_microbatches, request.num_ranks)[0];
  return weave(request, to_last_stage + per_rank * ranks_after + (request.overlap ? 1 : 0));
}

}  // namespace swapline::trainer
