// A pipeline schedule as data: what each rank runs, in which order, and what it needs from others.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace swapline::trainer {

// One micro-batch through one stage, in one direction. Stages and micro-batches count from 0.
struct Pass {
  int stage = -1;
  int microbatch = -1;

  bool operator==(const Pass&) const = default;
};

struct Action {
  // kOverlapped: a forward and a backward of one rank run against each other, each covering the
  // other's communication. Their stages may differ.
  enum class Kind { kForward, kBackward, kOverlapped };

  Kind kind = Kind::kForward;
  Pass forward;   // stage -1: none
  Pass backward;  // stage -1: none

  static Action forward_of(Pass pass) { return {Kind::kForward, pass, {}}; }
  static Action backward_of(Pass pass) { return {Kind::kBackward, {}, pass}; }
  static Action overlapped(Pass forward, Pass backward) {
    return {Kind::kOverlapped, forward, backward};
  }

  bool has_forward() const { return kind != Kind::kBackward; }
  bool has_backward() const { return kind != Kind::kForward; }

  bool operator==(const Action&) const = default;
};

struct Schedule {
  std::string name;
  int num_ranks = 0;
  int num_stages = 0;
  int num_microbatches = 0;
  std::vector<int> rank_of_stage;
  // One list per rank, in the order in which the rank runs it.
  std::vector<std::vector<Action>> actions;
};

// "F0.3": forward of stage 0, micro-batch 3. "B2.1": backward. "F0.3+B2.1": overlapped.
std::string to_string(const Action& action);
// One line per rank.
std::string to_string(const Schedule& schedule);

// A tensor that goes from one rank to another: a stage's output (to the stage after it), or the
// gradient of a stage's input (to the stage before it).
struct Transfer {
  enum class Kind { kActivation, kGradient };

  Kind kind = Kind::kActivation;
  int from_stage = 0;
  int to_stage = 0;
  int microbatch = 0;
  int from_rank = 0;
  int to_rank = 0;

  bool operator==(const Transfer&) const = default;
};

// What the action needs from other ranks before it starts, and what it has for them when it ends;
// the activation first. Neighbouring stages on one rank need no transfer, nor does the input of the
// first stage or the loss of the last.
std::vector<Transfer> incoming(const Schedule& schedule, const Action& action);
std::vector<Transfer> outgoing(const Schedule& schedule, const Action& action);

// The forwards alone, in their order.
Schedule forwards_of(const Schedule& schedule);

// The first action of `rank` that holds a backward, at a position after `index`; null: no more.
// What a prefetch asks for. Points into the schedule.
// Throws: std::out_of_range when there is no such rank.
const Action* next_backward_after(const Schedule& schedule, int rank, std::size_t index);

}  // namespace swapline::trainer
