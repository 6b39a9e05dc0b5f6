// The loop over ranks. Which of them runs first makes no difference in time: devices wait for each
// other by events, and each one's host has its own clock.
#include "trainer/pipeline/pipeline.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

namespace swapline::trainer {
namespace {

std::vector<Device*> devices_of(const Ranks& ranks) {
  std::vector<Device*> devices;
  for (const auto& rank : ranks) {
    devices.push_back(&rank->device);
  }
  return devices;
}

Parcel parcel_of(const Transfer& transfer, size_t lane) {
  return {transfer.kind, transfer.to_stage, transfer.microbatch, static_cast<int>(lane)};
}

}  // namespace

Pipeline::Pipeline(Schedule schedule,
                   StageRunner& runner,
                   std::vector<int64_t> hidden_sizes,
                   at::ScalarType dtype)
    : schedule_(std::move(schedule)),
      runner_(runner),
      hidden_sizes_(std::move(hidden_sizes)),
      dtype_(dtype),
      num_lanes_(runner.parts().num_lanes()),
      links_(devices_of(*runner.parts().ranks)),
      next_(schedule_.actions.size(), 0) {}

void Pipeline::run(const std::function<void(size_t rank)>& after_backward) {
  std::fill(next_.begin(), next_.end(), 0);
  bool has_run = true;
  while (has_run) {
    has_run = false;
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      if (!is_ready(rank)) {
        continue;
      }
      const bool has_backward = schedule_.actions[rank][next_[rank]].has_backward();
      run_action(rank);
      ++next_[rank];
      has_run = true;
      if (has_backward) {
        after_backward(rank);
      }
    }
  }
  check_end();
  links_.finish();
}

void Pipeline::check_end() const {
  std::string waiting;
  for (size_t rank = 0; rank < next_.size(); ++rank) {
    const std::vector<Action>& actions = schedule_.actions[rank];
    if (next_[rank] < actions.size()) {
      waiting += " rank " + std::to_string(rank) + " at " + to_string(actions[next_[rank]]);
    }
  }
  TORCH_CHECK(waiting.empty(), "pipeline: ranks wait for each other for ever:", waiting);
}

bool Pipeline::is_ready(size_t rank) const {
  const std::vector<Action>& actions = schedule_.actions[rank];
  if (next_[rank] == actions.size()) {
    return false;
  }
  const std::vector<Transfer> needed = incoming(schedule_, actions[next_[rank]]);
  return std::all_of(needed.begin(), needed.end(), [&](const Transfer& transfer) {
    return links_.is_sent(parcel_of(transfer, 0));
  });
}

// The places for what an action needs, before the one before it takes the device's time.
void Pipeline::expect(size_t rank, size_t index) {
  if (index >= schedule_.actions[rank].size()) {
    return;
  }
  for (const Transfer& transfer : incoming(schedule_, schedule_.actions[rank][index])) {
    for (size_t lane = 0; lane < num_lanes_; ++lane) {
      links_.expect(parcel_of(transfer, lane),
                    device(static_cast<size_t>(transfer.from_rank), lane),
                    device(rank, lane),
                    hidden_sizes_,
                    dtype_);
    }
  }
}

void Pipeline::run_action(size_t rank) {
  const std::vector<Action>& actions = schedule_.actions[rank];
  const size_t index = next_[rank];
  const Action& action = actions[index];
  for (size_t lane = 0; lane < num_lanes_; ++lane) {
    links_.begin_action(device(rank, lane));
  }
  expect(rank, index);
  expect(rank, index + 1);
  if (index + 1 < actions.size() && actions[index + 1].has_backward()) {
    runner_.will_go_backward(actions[index + 1].backward);
  }
  const StageRunner::Ends forward_ends = {
      [&] { return receive(Transfer::Kind::kActivation, action.forward, action); },
      [&](PerLane output) {
        pass_on(action.forward, Transfer::Kind::kActivation, std::move(output));
      }};
  const StageRunner::Ends backward_ends = {
      [&] { return receive(Transfer::Kind::kGradient, action.backward, action); },
      [&](PerLane gradients) {
        pass_on(action.backward, Transfer::Kind::kGradient, std::move(gradients));
      }};
  switch (action.kind) {
    case Action::Kind::kForward:
      forward_ends.send(runner_.forward(action.forward, forward_ends.receive()));
      break;
    case Action::Kind::kBackward:
      backward_ends.send(runner_.backward(action.backward, backward_ends.receive));
      break;
    case Action::Kind::kOverlapped:
      runner_.overlapped(action.forward, forward_ends, action.backward, backward_ends);
      break;
  }
}

// What `pass` starts from: from its neighbour on the same device, or from another rank.
PerLane Pipeline::receive(Transfer::Kind kind, const Pass& pass, const Action& action) {
  auto handed_over = handed_over_.extract({kind, runner_.parts().id(pass)});
  if (!handed_over.empty()) {
    return std::move(handed_over.mapped());
  }
  PerLane tensors;
  for (const Transfer& transfer : incoming(schedule_, action)) {
    for (size_t lane = 0; transfer.kind == kind && lane < num_lanes_; ++lane) {
      tensors.push_back(links_.receive(parcel_of(transfer, lane)));
    }
  }
  return tensors;
}

// To the stage behind, or with a gradient to the one before.
void Pipeline::pass_on(const Pass& pass, Transfer::Kind kind, PerLane tensors) {
  if (tensors.empty()) {
    return;
  }
  const bool is_activation = kind == Transfer::Kind::kActivation;
  const Pass to = {is_activation ? pass.stage + 1 : pass.stage - 1, pass.microbatch};
  const auto rank_of = [&](const Pass& of) {
    return static_cast<size_t>(schedule_.rank_of_stage[static_cast<size_t>(of.stage)]);
  };
  if (rank_of(to) == rank_of(pass)) {
    handed_over_.emplace(std::make_pair(kind, runner_.parts().id(to)), std::move(tensors));
    return;
  }
  for (size_t lane = 0; lane < num_lanes_; ++lane) {
    links_.send({kind, to.stage, to.microbatch, static_cast<int>(lane)},
                device(rank_of(pass), lane),
                std::exchange(tensors[lane], {}));
  }
}

}  // namespace swapline::trainer
