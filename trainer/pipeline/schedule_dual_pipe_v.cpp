// DualPipeV: the stages go down the ranks and come back up, so that each rank holds one stage of
// either half and pairs the forward of one with the backward of the other. The order is that of the
// published schedule; its separate weight-gradient steps are part of whole backwards here.
#include "trainer/pipeline/schedule_orders.h"

#include <utility>

namespace swapline::trainer {
namespace {

// One of the rank's two stages, and how far it is.
class HalfOrder {
 public:
  explicit HalfOrder(int stage) : stage_(stage) {}

  Pass next_forward() { return {stage_, forwards_++}; }
  Pass next_backward() { return {stage_, backwards_++}; }

 private:
  int stage_;
  int forwards_ = 0;
  int backwards_ = 0;
};

class OrderWriter {
 public:
  explicit OrderWriter(bool overlap) : overlap_(overlap) {}

  void forward(HalfOrder& half) { actions_.push_back(Action::forward_of(half.next_forward())); }
  void backward(HalfOrder& half) { actions_.push_back(Action::backward_of(half.next_backward())); }
  void pair(HalfOrder& of_forward, HalfOrder& of_backward) {
    if (!overlap_) {
      forward(of_forward);
      backward(of_backward);
      return;
    }
    const Pass forward_pass = of_forward.next_forward();
    actions_.push_back(Action::overlapped(forward_pass, of_backward.next_backward()));
  }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  bool overlap_;
  std::vector<Action> actions_;
};

}  // namespace

std::vector<Action> dual_pipe_v_order(const OrderRequest& request) {
  const int ranks_after = request.num_ranks - 1 - request.rank;
  const int from_turn = request.rank + 1;
  HalfOrder down(request.rank);
  HalfOrder up(2 * request.num_ranks - 1 - request.rank);
  OrderWriter write(request.overlap);

  // Warm-up: until the first micro-batch is back from the turn, only the way down has work.
  for (int i = 0; i < 2 * ranks_after; ++i) {
    write.forward(down);
  }
  for (int i = 0; i < from_turn; ++i) {
    write.forward(down);
    write.forward(up);
  }
  for (int i = 0; i < ranks_after; ++i) {
    write.backward(up);
    write.forward(up);
  }

  // Steady: each half's forward against the other half's backward.
  const int num_rounds = request.num_microbatches - 2 * request.num_ranks + from_turn;
  for (int round = 0; round < num_rounds; ++round) {
    if (round == 0 && ranks_after == 0) {
      // The first backward of all: every rank above waits for it, so nothing may slow it down.
      write.forward(down);
      write.backward(up);
    } else {
      write.pair(down, up);
    }
    write.pair(up, down);
  }

  // Cool-down: the way down has no more forwards, then neither has the way up.
  for (int i = 0; i < ranks_after; ++i) {
    write.backward(up);
    write.pair(up, down);
  }
  for (int i = 0; i < from_turn; ++i) {
    write.backward(up);
    write.backward(down);
  }
  for (int i = 0; i < ranks_after; ++i) {
    write.backward(down);
  }
  return write.take();
}

}  // namespace swapline::trainer
