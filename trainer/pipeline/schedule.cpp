// Names, transfers and look-ahead: all that can be read off one action and its place.
#include "trainer/pipeline/schedule.h"

#include <algorithm>
#include <string_view>

namespace swapline::trainer {
namespace {

std::string name_of(char direction, Pass pass) {
  return direction + std::to_string(pass.stage) + "." + std::to_string(pass.microbatch);
}

void add_transfer(const Schedule& schedule,
                  Transfer::Kind kind,
                  int from_stage,
                  int to_stage,
                  int microbatch,
                  std::vector<Transfer>& transfers) {
  if (std::min(from_stage, to_stage) < 0 || std::max(from_stage, to_stage) >= schedule.num_stages) {
    return;
  }
  const int from_rank = schedule.rank_of_stage.at(static_cast<std::size_t>(from_stage));
  const int to_rank = schedule.rank_of_stage.at(static_cast<std::size_t>(to_stage));
  if (from_rank != to_rank) {
    transfers.push_back({kind, from_stage, to_stage, microbatch, from_rank, to_rank});
  }
}

}  // namespace

std::string to_string(const Action& action) {
  std::string name;
  if (action.has_forward()) {
    name += name_of('F', action.forward);
  }
  if (action.has_backward()) {
    name += (name.empty() ? "" : "+") + name_of('B', action.backward);
  }
  return name;
}

std::string to_string(const Schedule& schedule) {
  std::string text;
  for (const std::vector<Action>& actions : schedule.actions) {
    std::string_view gap = "";
    for (const Action& action : actions) {
      text += gap;
      text += to_string(action);
      gap = " ";
    }
    text += "\n";
  }
  return text;
}

std::vector<Transfer> incoming(const Schedule& schedule, const Action& action) {
  std::vector<Transfer> transfers;
  if (action.has_forward()) {
    const auto [stage, microbatch] = action.forward;
    add_transfer(schedule, Transfer::Kind::kActivation, stage - 1, stage, microbatch, transfers);
  }
  if (action.has_backward()) {
    const auto [stage, microbatch] = action.backward;
    add_transfer(schedule, Transfer::Kind::kGradient, stage + 1, stage, microbatch, transfers);
  }
  return transfers;
}

std::vector<Transfer> outgoing(const Schedule& schedule, const Action& action) {
  std::vector<Transfer> transfers;
  if (action.has_forward()) {
    const auto [stage, microbatch] = action.forward;
    add_transfer(schedule, Transfer::Kind::kActivation, stage, stage + 1, microbatch, transfers);
  }
  if (action.has_backward()) {
    const auto [stage, microbatch] = action.backward;
    add_transfer(schedule, Transfer::Kind::kGradient, stage, stage - 1, microbatch, transfers);
  }
  return transfers;
}

Schedule forwards_of(const Schedule& schedule) {
  Schedule forwards = schedule;
  for (std::vector<Action>& actions : forwards.actions) {
    std::erase_if(actions, [](const Action& action) { return !action.has_forward(); });
    for (Action& action : actions) {
      action = Action::forward_of(action.forward);
    }
  }
  return forwards;
}

const Action* next_backward_after(const Schedule& schedule, int rank, std::size_t index) {
  const std::vector<Action>& actions = schedule.actions.at(static_cast<std::size_t>(rank));
  for (std::size_t at = index + 1; at < actions.size(); ++at) {
    if (actions[at].has_backward()) {
      return &actions[at];
    }
  }
  return nullptr;
}

}  // namespace swapline::trainer
