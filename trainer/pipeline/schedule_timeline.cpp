// Both queries run the schedule: rank by rank as far as each can go, until nobody can go on.
#include "trainer/pipeline/schedule_timeline.h"

#include "trainer/pipeline/schedule_passes.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

namespace swapline::trainer {
namespace {

ActionCost uniform_cost(double forward, double backward, double overlapped) {
  return [=](const Action& action) {
    switch (action.kind) {
      case Action::Kind::kForward:
        return forward;
      case Action::Kind::kBackward:
        return backward;
      case Action::Kind::kOverlapped:
        break;
    }
    return overlapped;
  };
}

class Run {
 public:
  Run(const Schedule& schedule, const ActionCost& cost)
      : schedule_(schedule),
        cost_(cost),
        forward_ends_(schedule),
        backward_ends_(schedule),
        next_(schedule.actions.size(), 0),
        free_at_(schedule.actions.size(), 0) {}

  // Returns the makespan. Throws: std::logic_error when the ranks wait for each other.
  double to_the_end() {
    bool has_moved = true;
    while (has_moved) {
      has_moved = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank) {
        while (advance(rank)) {
          has_moved = true;
        }
      }
    }
    check_ended();
    return *std::max_element(free_at_.begin(), free_at_.end());
  }

 private:
  bool advance(std::size_t rank) {
    const std::vector<Action>& actions = schedule_.actions[rank];
    if (next_[rank] == actions.size()) {
      return false;
    }
    const Action& action = actions[next_[rank]];
    double start = free_at_[rank];
    if (missing_input(action, start)) {
      return false;
    }
    const double end = start + cost_(action);
    if (action.has_forward()) {
      forward_ends_.set(action.forward, end);
    }
    if (action.has_backward()) {
      backward_ends_.set(action.backward, end);
    }
    free_at_[rank] = end;
    ++next_[rank];
    return true;
  }

  // An input that is not there yet; when there is none, `start` waits for the last of them.
  std::optional<Action> missing_input(const Action& action, double& start) const {
    if (action.has_forward() && action.forward.stage > 0) {
      const Pass input{action.forward.stage - 1, action.forward.microbatch};
      if (!forward_ends_.has(input)) {
        return Action::forward_of(input);
      }
      start = std::max(start, forward_ends_.at(input));
    }
    // Its own forward ran on this rank before: that is checked by now, and costs no wait.
    if (action.has_backward() && action.backward.stage + 1 < schedule_.num_stages) {
      const Pass gradient{action.backward.stage + 1, action.backward.microbatch};
      if (!backward_ends_.has(gradient)) {
        return Action::backward_of(gradient);
      }
      start = std::max(start, backward_ends_.at(gradient));
    }
    return std::nullopt;
  }

  void check_ended() const {
    std::string stuck;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (next_[rank] == schedule_.actions[rank].size()) {
        continue;
      }
      const Action& action = schedule_.actions[rank][next_[rank]];
      double start = 0;
      if (const std::optional<Action> missing = missing_input(action, start)) {
        stuck += (stuck.empty() ? "" : "; ") + place_of(rank, next_[rank], action) + " waits for " +
                 to_string(*missing);
      }
    }
    if (!stuck.empty()) {
      fail(schedule_, "the ranks wait for each other for ever: " + stuck);
    }
  }

  const Schedule& schedule_;
  const ActionCost& cost_;
  PassTimes forward_ends_;
  PassTimes backward_ends_;
  std::vector<std::size_t> next_;
  std::vector<double> free_at_;
};

void count_in_flight(const Schedule& schedule, ScheduleShape& shape) {
  std::vector<int> now(static_cast<std::size_t>(schedule.num_stages), 0);
  shape.in_flight_of_stage.assign(now.size(), 0);
  for (const std::vector<Action>& actions : schedule.actions) {
    int now_on_rank = 0;
    int most_on_rank = 0;
    for (const Action& action : actions) {
      // The forward first: while a pair runs, both of its micro-batches are in flight.
      if (action.has_forward()) {
        const auto stage = static_cast<std::size_t>(action.forward.stage);
        shape.in_flight_of_stage[stage] = std::max(shape.in_flight_of_stage[stage], ++now[stage]);
        most_on_rank = std::max(most_on_rank, ++now_on_rank);
      }
      if (action.has_backward()) {
        --now[static_cast<std::size_t>(action.backward.stage)];
        --now_on_rank;
      }
    }
    shape.in_flight_of_rank.push_back(most_on_rank);
  }
}

}  // namespace

void check(const Schedule& schedule) {
  makespan(schedule, uniform_cost(1, 1, 2));
}

double makespan(const Schedule& schedule, const ActionCost& cost) {
  check_passes(schedule);
  return Run(schedule, cost).to_the_end();
}

ScheduleShape analyse(const Schedule& schedule,
                      double forward_cost,
                      double backward_cost,
                      double overlapped_cost) {
  const ActionCost cost = uniform_cost(forward_cost, backward_cost, overlapped_cost);
  ScheduleShape shape;
  shape.makespan = makespan(schedule, cost);
  for (const std::vector<Action>& actions : schedule.actions) {
    double busy = 0;
    for (const Action& action : actions) {
      busy += cost(action);
    }
    shape.bubble_share.push_back(1 - busy / shape.makespan);
  }
  count_in_flight(schedule, shape);
  return shape;
}

}  // namespace swapline::trainer
