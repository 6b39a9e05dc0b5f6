// Walks each rank's list once; the order between ranks is the timeline's matter.
#include "trainer/pipeline/schedule_passes.h"

#include <stdexcept>

namespace swapline::trainer {
namespace {

void check_sizes(const Schedule& schedule) {
  if (schedule.num_ranks < 1 || schedule.num_stages < 1 || schedule.num_microbatches < 1) {
    fail(schedule, "it has no ranks, no stages or no micro-batches");
  }
  if (schedule.rank_of_stage.size() != static_cast<std::size_t>(schedule.num_stages)) {
    fail(schedule,
         "found the ranks of " + std::to_string(schedule.rank_of_stage.size()) +
             " stages, there are " + std::to_string(schedule.num_stages));
  }
  if (schedule.actions.size() != static_cast<std::size_t>(schedule.num_ranks)) {
    fail(schedule,
         "found the actions of " + std::to_string(schedule.actions.size()) + " ranks, there are " +
             std::to_string(schedule.num_ranks));
  }
}

class PassCheck {
 public:
  explicit PassCheck(const Schedule& schedule)
      : schedule_(schedule), forwards_(schedule), backwards_(schedule) {}

  void see(std::size_t rank, std::size_t index) {
    const Action& action = schedule_.actions[rank][index];
    const std::string place = place_of(rank, index, action);
    // The backward first: in an overlapped action its forward must have run before.
    if (action.has_backward()) {
      check_stage(action.backward, rank, place);
      if (!forwards_.has(action.backward)) {
        fail(schedule_, place + ": the backward comes before its forward");
      }
      mark(backwards_, action.backward, place);
    }
    if (action.has_forward()) {
      check_stage(action.forward, rank, place);
      mark(forwards_, action.forward, place);
    }
  }

  void check_nothing_missing() const {
    for (int stage = 0; stage < schedule_.num_stages; ++stage) {
      for (int microbatch = 0; microbatch < schedule_.num_microbatches; ++microbatch) {
        const Pass pass{stage, microbatch};
        if (!forwards_.has(pass)) {
          fail(schedule_, to_string(Action::forward_of(pass)) + " is missing");
        }
        if (!backwards_.has(pass)) {
          fail(schedule_, to_string(Action::backward_of(pass)) + " is missing");
        }
      }
    }
  }

 private:
  void check_stage(Pass pass, std::size_t rank, const std::string& place) const {
    if (pass.stage < 0 || pass.stage >= schedule_.num_stages || pass.microbatch < 0 ||
        pass.microbatch >= schedule_.num_microbatches) {
      fail(schedule_,
           place + ": there are only " + std::to_string(schedule_.num_stages) + " stages and " +
               std::to_string(schedule_.num_microbatches) + " micro-batches");
    }
    const int right_rank = schedule_.rank_of_stage[static_cast<std::size_t>(pass.stage)];
    if (right_rank != static_cast<int>(rank)) {
      fail(schedule_,
           place + ": stage " + std::to_string(pass.stage) + " is on rank " +
               std::to_string(right_rank));
    }
  }

  void mark(PassTimes& seen, Pass pass, const std::string& place) const {
    if (seen.has(pass)) {
      fail(schedule_, place + ": it is there twice");
    }
    seen.set(pass, 0);
  }

  const Schedule& schedule_;
  PassTimes forwards_;
  PassTimes backwards_;
};

}  // namespace

std::string place_of(std::size_t rank, std::size_t index, const Action& action) {
  return "rank " + std::to_string(rank) + ", action " + std::to_string(index) + " (" +
         to_string(action) + ")";
}

void fail(const Schedule& schedule, const std::string& what) {
  throw std::logic_error("schedule " + schedule.name + ": " + what);
}

void check_passes(const Schedule& schedule) {
  check_sizes(schedule);
  PassCheck passes(schedule);
  for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    for (std::size_t index = 0; index < schedule.actions[rank].size(); ++index) {
      passes.see(rank, index);
    }
  }
  passes.check_nothing_missing();
}

}  // namespace swapline::trainer
