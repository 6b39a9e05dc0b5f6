// What a request may ask for, and which stage is where; the orders themselves are in their files.
#include "trainer/pipeline/schedule_builders.h"

#include "trainer/pipeline/schedule_orders.h"

#include <algorithm>
#include <stdexcept>

namespace swapline::trainer {
namespace {

constexpr const char* kGPipe = "GPipe";
constexpr const char* k1F1B = "1F1B";
constexpr const char* kInterleaved = "Interleaved1F1B";
constexpr const char* kDualPipeV = "DualPipeV";

constexpr const char* kDegreeOption = "--parallelism.pipeline-parallel-degree";
constexpr const char* kScheduleOption = "--parallelism.pipeline-parallel-schedule";
constexpr const char* kLayersOption = "--parallelism.pipeline-parallel-layers-per-stage";
constexpr const char* kMicrobatchOption = "--parallelism.pipeline-parallel-microbatch-size";
constexpr const char* kBatchOption = "--training.local-batch-size";
constexpr const char* kOverlapOption = "--parallelism.moe-fb-overlap";

[[noreturn]] void refuse(const std::string& message) {
  throw std::invalid_argument(message);
}

void check_name(const ScheduleRequest& request) {
  std::string known;
  for (const std::string& name : schedule_names()) {
    if (name == request.name) {
      return;
    }
    known += (known.empty() ? "" : ", ") + name;
  }
  // The schedule of one rank is not asked for by name, but may be.
  if (request.name == "none" && request.num_ranks == 1) {
    return;
  }
  refuse(std::string(kScheduleOption) + ": found \"" + request.name +
         "\", allowed is one of: " + known);
}

void check_num_microbatches(const ScheduleRequest& request) {
  const int fewest =
      request.name == kDualPipeV && request.num_ranks > 1 ? 2 * request.num_ranks : 1;
  if (request.num_microbatches >= fewest) {
    return;
  }
  refuse(request.name + " on " + std::to_string(request.num_ranks) + " ranks: found " +
         std::to_string(request.num_microbatches) + " micro-batches, allowed is " +
         std::to_string(fewest) + " or more: lower " + kMicrobatchOption + " or raise " +
         kBatchOption);
}

int default_stages_per_rank(const ScheduleRequest& request) {
  const bool has_several = request.name == kInterleaved || request.name == kDualPipeV;
  return request.num_ranks > 1 && has_several ? 2 : 1;
}

int checked_stages_per_rank(const ScheduleRequest& request) {
  const int wanted = default_stages_per_rank(request);
  const int found = request.stages_per_rank == 0 ? wanted : request.stages_per_rank;
  const bool or_more = request.name == kInterleaved && request.num_ranks > 1;
  if (found == wanted || (or_more && found > wanted)) {
    return found;
  }
  refuse(request.name + " on " + std::to_string(request.num_ranks) + " ranks: found " +
         std::to_string(found) + " stages per rank, allowed is " + std::to_string(wanted) +
         (or_more ? " or more" : "") + ": turn " + kLayersOption + " or " +
         (request.num_ranks == 1 ? kDegreeOption : kScheduleOption));
}

int check_request(const ScheduleRequest& request) {
  if (request.num_ranks < 1) {
    refuse(std::string(kDegreeOption) + ": found " + std::to_string(request.num_ranks) +
           ", allowed is 1 (no pipeline) or more");
  }
  check_name(request);
  check_num_microbatches(request);
  if (request.overlap && request.name == kGPipe && request.num_ranks > 1) {
    refuse(std::string(kScheduleOption) + ": found GPipe with " + kOverlapOption +
           ", but GPipe never has a forward and a backward ready together: allowed is another "
           "schedule, or no overlap");
  }
  return checked_stages_per_rank(request);
}

}  // namespace

std::vector<std::string> schedule_names() {
  return {kGPipe, k1F1B, kInterleaved, kDualPipeV};
}

int num_stages_of(const ScheduleRequest& request) {
  return request.num_ranks * check_request(request);
}

Schedule make_schedule(const ScheduleRequest& request) {
  const int stages_per_rank = check_request(request);
  Schedule schedule;
  schedule.name = request.num_ranks == 1 ? "none" : request.name;
  schedule.num_ranks = request.num_ranks;
  schedule.num_stages = request.num_ranks * stages_per_rank;
  schedule.num_microbatches = request.num_microbatches;
  for (int stage = 0; stage < schedule.num_stages; ++stage) {
    const int mirrored = schedule.num_stages - 1 - stage;
    schedule.rank_of_stage.push_back(schedule.name == kDualPipeV ? std::min(stage, mirrored)
                                                                 : stage % request.num_ranks);
  }
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    const OrderRequest order{
        rank, request.num_ranks, stages_per_rank, request.num_microbatches, request.overlap};
    if (schedule.name == kDualPipeV) {
      schedule.actions.push_back(dual_pipe_v_order(order));
    } else if (schedule.name == kGPipe) {
      schedule.actions.push_back(gpipe_order(order));
    } else {
      schedule.actions.push_back(one_forward_one_backward_order(order));
    }
  }
  return schedule;
}

}  // namespace swapline::trainer
