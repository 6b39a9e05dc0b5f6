// One pair after the other, kept when the schedule on paper gets no longer.
#include "trainer/pipeline/schedule_pairing.h"

#include "trainer/pipeline/schedule_timeline.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace swapline::trainer {
namespace {

// With recompute a backward takes three forwards. The last stage goes back through the loss in its
// forward. A pair hides communication, of about a twentieth of a layer's time.
ActionCost cost_of(const StageLoads& loads) {
  return [&loads](const Action& action) {
    constexpr double kHiddenOfALayer = 0.2;
    const auto layers_of = [&](const Pass& pass) {
      return loads.layers[static_cast<size_t>(pass.stage)];
    };
    double cost = 0.1;  // what a stage without layers takes
    if (action.has_forward()) {
      const bool is_last = static_cast<size_t>(action.forward.stage) + 1 == loads.layers.size();
      cost += layers_of(action.forward) + (is_last ? 3 * loads.head : 0);
    }
    if (action.has_backward()) {
      cost += 3 * layers_of(action.backward);
    }
    if (action.kind == Action::Kind::kOverlapped) {
      cost -= kHiddenOfALayer * std::min(layers_of(action.forward), layers_of(action.backward));
    }
    return cost;
  };
}

// Whether the neighbours were there to be joined.
bool join(std::vector<Action>& actions, const Action& pair) {
  const std::vector<Action> parts = {Action::forward_of(pair.forward),
                                     Action::backward_of(pair.backward)};
  const auto found = std::search(actions.begin(), actions.end(), parts.begin(), parts.end());
  if (found == actions.end()) {
    return false;
  }
  *found = pair;
  actions.erase(found + 1);
  return true;
}

}  // namespace

Schedule pair_where_faster(Schedule apart, const Schedule& paired, const StageLoads& loads) {
  const ActionCost cost = cost_of(loads);
  constexpr double kRounding = 1e-9;
  Schedule best = std::move(apart);
  double best_length = makespan(best, cost);
  bool has_changed = true;
  while (std::exchange(has_changed, false)) {
    for (size_t rank = 0; rank < paired.actions.size(); ++rank) {
      for (const Action& action : paired.actions[rank]) {
        Schedule tried = best;
        if (action.kind != Action::Kind::kOverlapped || !join(tried.actions[rank], action)) {
          continue;
        }
        double length = 0;
        try {
          length = makespan(tried, cost);
        } catch (const std::logic_error&) {
          continue;  // the ranks would wait for each other for ever
        }
        if (length <= best_length + kRounding) {
          best_length = length;
          best = std::move(tried);
          has_changed = true;
        }
      }
    }
  }
  return best;
}

}  // namespace swapline::trainer
