// What holds for every built-in schedule, whatever the ranks, stages and micro-batches.
#include "trainer/pipeline/schedule_builders.h"
#include "trainer/pipeline/schedule_timeline.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

namespace swapline::trainer {
namespace {

ScheduleRequest any_request_of(const std::string& name) {
  ScheduleRequest request;
  request.name = name;
  request.num_ranks = *rc::gen::inRange(1, 9);
  const bool is_pipeline = request.num_ranks > 1;
  if (name == "Interleaved1F1B" && is_pipeline) {
    request.stages_per_rank = *rc::gen::inRange(2, 6);
  }
  const int fewest = name == "DualPipeV" && is_pipeline ? 2 * request.num_ranks : 1;
  request.num_microbatches = fewest + *rc::gen::inRange(0, 41);
  request.overlap = (name != "GPipe" || !is_pipeline) && *rc::gen::arbitrary<bool>();
  return request;
}

ScheduleRequest any_request() {
  return any_request_of(*rc::gen::elementOf(schedule_names()));
}

// Costs whose sums are exact, so that formulas are compared without tolerance.
struct AnyCosts {
  double forward = *rc::gen::inRange(1, 9);
  double backward = *rc::gen::inRange(1, 17);
  double apart() const { return forward + backward; }
  // Less than apart, no less than either alone.
  double overlapped = std::max(forward, backward) + std::min(forward, backward) / 2;

  ScheduleShape shape_of(const ScheduleRequest& request) const {
    return analyse(make_schedule(request), forward, backward, overlapped);
  }
};

RC_GTEST_PROP(Schedules, CanRun, ()) {
  check(make_schedule(any_request()));
}

RC_GTEST_PROP(Schedules, BackwardsOfEachStageAreInTheOrderOfTheMicrobatches, ()) {
  const Schedule schedule = make_schedule(any_request());
  std::vector<int> next(static_cast<size_t>(schedule.num_stages), 0);
  for (const std::vector<Action>& actions : schedule.actions) {
    for (const Action& action : actions) {
      if (action.has_backward()) {
        RC_ASSERT(action.backward.microbatch == next[static_cast<size_t>(action.backward.stage)]++);
      }
    }
  }
}

RC_GTEST_PROP(Schedules, PairsAreThereWithOverlapOnly, ()) {
  ScheduleRequest request = any_request();
  const Schedule schedule = make_schedule(request);
  int pairs = 0;
  for (const std::vector<Action>& actions : schedule.actions) {
    pairs += static_cast<int>(std::count_if(actions.begin(), actions.end(), [](const Action& a) {
      return a.kind == Action::Kind::kOverlapped;
    }));
  }
  RC_ASSERT((pairs > 0) == (request.overlap && request.num_microbatches > 1));
}

RC_GTEST_PROP(Schedules, TransfersOfOneKindAreSentInTheOrderInWhichTheyAreReceived, ()) {
  const Schedule schedule = make_schedule(any_request());
  using Link = std::tuple<int, int, Transfer::Kind>;
  std::map<Link, std::vector<Transfer>> sent;
  std::map<Link, std::vector<Transfer>> received;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (const Action& action : schedule.actions[static_cast<size_t>(rank)]) {
      for (const Transfer& transfer : outgoing(schedule, action)) {
        RC_ASSERT(transfer.from_rank == rank && transfer.to_rank != rank);
        sent[{transfer.from_rank, transfer.to_rank, transfer.kind}].push_back(transfer);
      }
      for (const Transfer& transfer : incoming(schedule, action)) {
        RC_ASSERT(transfer.to_rank == rank && transfer.from_rank != rank);
        received[{transfer.from_rank, transfer.to_rank, transfer.kind}].push_back(transfer);
      }
    }
  }
  RC_ASSERT((sent == received));
}

RC_GTEST_PROP(Schedules, GPipeKeepsAllInFlightAndTakesTheTextbookTime, ()) {
  ScheduleRequest request = any_request_of("GPipe");
  request.num_ranks = std::max(2, request.num_ranks);
  request.overlap = false;
  const AnyCosts costs;
  const ScheduleShape shape = costs.shape_of(request);
  for (const int in_flight : shape.in_flight_of_stage) {
    RC_ASSERT(in_flight == request.num_microbatches);
  }
  RC_ASSERT(shape.makespan == (request.num_microbatches + request.num_ranks - 1) * costs.apart());
}

RC_GTEST_PROP(Schedules, OneForwardOneBackwardKeepsNoMoreThanTheRanksBelow, ()) {
  const ScheduleRequest request = any_request_of("1F1B");
  const ScheduleShape shape = AnyCosts().shape_of(request);
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    const int bound = (request.overlap ? 2 : 1) * (request.num_ranks - rank);
    RC_ASSERT(shape.in_flight_of_stage[static_cast<size_t>(rank)] ==
              std::min(bound, request.num_microbatches));
  }
}

RC_GTEST_PROP(Schedules, OneForwardOneBackwardTakesTheTextbookTime, ()) {
  const ScheduleRequest request = any_request_of("1F1B");
  const AnyCosts costs;
  const double each = request.overlap ? costs.overlapped : costs.apart();
  RC_ASSERT(costs.shape_of(request).makespan ==
            request.num_ranks * costs.apart() + (request.num_microbatches - 1) * each);
}

RC_GTEST_PROP(Schedules, InterleavedBubbleIsTheStagesPerRankTimesSmaller, ()) {
  ScheduleRequest request = any_request_of("Interleaved1F1B");
  RC_PRE(request.num_ranks > 1 && request.num_microbatches >= request.num_ranks);
  request.overlap = false;
  const AnyCosts costs;  // of one stage: a 1/v of the rank's share
  const double work = request.stages_per_rank * request.num_microbatches * costs.apart();
  // In 1F1B a rank's share takes v times as long, and so does its bubble.
  RC_ASSERT(costs.shape_of(request).makespan == work + (request.num_ranks - 1) * costs.apart());
}

RC_GTEST_PROP(Schedules, InterleavedKeepsNoMoreThanItsWarmUp, ()) {
  const ScheduleRequest request = any_request_of("Interleaved1F1B");
  RC_PRE(request.num_ranks > 1);
  const ScheduleShape shape = AnyCosts().shape_of(request);
  const int groups = std::max(1, request.num_microbatches / request.num_ranks);
  const int group = (request.num_microbatches + groups - 1) / groups;
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    const int warm_up =
        (request.stages_per_rank - 1) * group + 2 * (request.num_ranks - 1 - rank) + 1;
    RC_ASSERT(shape.in_flight_of_rank[static_cast<size_t>(rank)] ==
              std::min(warm_up + (request.overlap ? 1 : 0),
                       request.stages_per_rank * request.num_microbatches));
  }
}

RC_GTEST_PROP(Schedules, DualPipeVKeepsTwoHalfStagesPerRankAndOneMore, ()) {
  const ScheduleRequest request = any_request_of("DualPipeV");
  RC_PRE(request.num_ranks > 1);
  for (const int in_flight : AnyCosts().shape_of(request).in_flight_of_rank) {
    RC_ASSERT(in_flight <= 2 * request.num_ranks + 1);
  }
}

RC_GTEST_PROP(Schedules, OverlapIsFasterWhenAPairIs, ()) {
  ScheduleRequest request = any_request();
  RC_PRE(request.name != "GPipe" && request.num_microbatches > 1);
  const AnyCosts costs;
  request.overlap = false;
  const double apart = costs.shape_of(request).makespan;
  request.overlap = true;
  RC_ASSERT(costs.shape_of(request).makespan < apart);
}

RC_GTEST_PROP(Schedules, NextBackwardIsTheNextOfTheList, ()) {
  const Schedule schedule = make_schedule(any_request());
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    const std::vector<Action>& actions = schedule.actions[static_cast<size_t>(rank)];
    const Action* next = nullptr;
    for (size_t index = actions.size(); index-- > 0;) {
      RC_ASSERT(next_backward_after(schedule, rank, index) == next);
      next = actions[index].has_backward() ? &actions[index] : next;
    }
  }
}

}  // namespace
}  // namespace swapline::trainer
