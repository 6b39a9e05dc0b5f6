// Stages of several lanes that share experts. Two walks in turn, one forward and one backward, hide
// each one's communication under the other's compute.
#include "trainer/pipeline/expert_walks.h"
#include "trainer/pipeline/stage_runner.h"
#include "trainer/pipeline/stage_settings.h"

#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

namespace swapline::trainer {
namespace {

// What a pair's forward may send from a device if its exchanges and the backward's are to be one:
// then launches and latency take longer than the bytes. What is larger is worth hiding instead.
constexpr int64_t kCoalescedBytes = int64_t{2} << 20;

class ExpertStages : public StageRunner {
 public:
  ExpertStages(StageParts parts, bool recomputes)
      : StageRunner(std::move(parts)),
        settings_(parts_, recomputes ? Kept::kInputs : Kept::kGraphs) {}

  // A backward's own inputs come back one by one; the next one's first comes behind them.
  void will_go_backward(Pass pass) override { expected_ = pass; }

  PerLane forward(Pass pass, PerLane hidden_states) override {
    prefetch_expected();
    ForwardWalk walk = begin_forward(pass, std::move(hidden_states));
    while (!walk.is_done()) {
      walk.advance();
      walk.send();
    }
    return end_forward(pass, walk);
  }

  PerLane backward(Pass pass, const Receive& receive) override {
    BackwardWalk walk = begin_backward(pass, receive);
    while (!walk.is_done()) {
      walk.advance();
      walk.send();
    }
    return end_backward(pass, walk);
  }

  // The forward is ahead, so that it is at its end before the backward's last piece. Large
  // exchanges: its first tokens are on their way when the backward begins, and each one's travel
  // while the other computes. Small ones: both compute up to where both have tokens to send.
  void overlapped(Pass forward_pass,
                  const Ends& forward_ends,
                  Pass backward_pass,
                  const Ends& backward_ends) override {
    prefetch(backward_pass);  // on its way out still, perhaps: then the forward lets it go no more
    ForwardWalk forward_walk = begin_forward(forward_pass, forward_ends.receive());
    going_forward_ = forward_pass;
    const auto advance_forward = [&] {
      forward_walk.advance();
      if (forward_walk.is_done()) {
        forward_ends.send(end_forward(forward_pass, forward_walk));
        going_forward_.reset();
        prefetch_expected();
      }
    };
    advance_forward();
    const bool is_coalesced =
        forward_walk.num_bytes_to_experts().value_or(kCoalescedBytes + 1) <= kCoalescedBytes;
    if (!is_coalesced && !forward_walk.is_done()) {
      advance_forward();
    }
    BackwardWalk backward_walk = begin_backward(backward_pass, backward_ends.receive);
    if (is_coalesced) {
      backward_walk.advance();  // under way meanwhile: the forward's counts
      while (!forward_walk.is_done() || !backward_walk.is_done()) {
        advance_to_shipments(forward_walk, backward_walk, advance_forward);
        ExpertWalk::send_together(forward_walk, backward_walk);
      }
    }
    while (!forward_walk.is_done() || !backward_walk.is_done()) {
      forward_walk.send();
      if (!backward_walk.is_done()) {
        backward_walk.advance();
        backward_walk.send();
      }
      if (!forward_walk.is_done()) {
        advance_forward();
      }
    }
    backward_ends.send(end_backward(backward_pass, backward_walk));
  }

 private:
  // In turns, so that the forward's counts travel while the backward's next piece is enqueued.
  static void advance_to_shipments(ForwardWalk& forward,
                                   BackwardWalk& backward,
                                   const std::function<void()>& advance_forward) {
    const auto goes_on = [](const auto& walk) {
      return !walk.is_done() && walk.shipment() == nullptr;
    };
    while (goes_on(forward) || goes_on(backward)) {
      if (goes_on(forward)) {
        advance_forward();
      }
      if (goes_on(backward)) {
        backward.advance();
      }
    }
  }

  // Not while the pass goes forward itself: the input that its backward needs first comes last.
  void prefetch_expected() {
    if (expected_ && expected_ != going_forward_) {
      prefetch(*std::exchange(expected_, std::nullopt));
    }
  }

  ForwardWalk begin_forward(Pass pass, PerLane hidden_states) {
    const Stage& stage = parts_.stage(pass);
    begin_microbatch(pass);
    MicrobatchPass& state = passes_[parts_.id(pass)];
    for (size_t lane = 0; stage.is_first && lane < parts_.num_lanes(); ++lane) {
      state.embeddings.emplace_back();
      hidden_states.push_back(
          state.embeddings.back().leave(embedded(stage, pass.microbatch, lane)));
    }
    return ForwardWalk(settings_.of(pass), state, std::move(hidden_states));
  }

  // The last stage goes back through the loss at once: so the logits of one micro-batch at most are
  // there, whatever comes before its backward.
  PerLane end_forward(Pass pass, ForwardWalk& walk) {
    const Stage& stage = parts_.stage(pass);
    PerLane output = walk.take_output();
    if (!stage.is_last) {
      return output;
    }
    const auto run_layer = [](const LayerPtr&, at::Tensor) -> at::Tensor {
      TORCH_CHECK(false, "layers behind the last stage do not share experts");
    };
    MicrobatchPass& state = passes_.at(parts_.id(pass));
    for (size_t lane = 0; lane < parts_.num_lanes(); ++lane) {
      const at::Tensor leaf = as_leaf(std::exchange(output[lane], {}));
      torch::autograd::backward({loss(stage, pass.microbatch, lane, leaf, run_layer)});
      state.loss_gradients.push_back(leaf.grad());
    }
    return {};
  }

  BackwardWalk begin_backward(Pass pass, const Receive& receive) {
    MicrobatchPass& state = passes_.at(parts_.id(pass));
    if (state.layers.empty()) {
      prefetch_expected();
    }
    const auto of_loss = [&state] { return std::move(state.loss_gradients); };
    return BackwardWalk(
        settings_.of(pass), state, parts_.stage(pass).is_last ? Receive(of_loss) : receive, [this] {
          prefetch_expected();
        });
  }

  PerLane end_backward(Pass pass, BackwardWalk& walk) {
    auto state = passes_.extract(parts_.id(pass));
    PerLane gradients = walk.take_gradients();
    if (!parts_.stage(pass).is_first) {
      return gradients;
    }
    for (size_t lane = 0; lane < parts_.num_lanes(); ++lane) {
      state.mapped().embeddings[lane].backward(std::exchange(gradients[lane], {}));
    }
    return {};
  }

  std::optional<Pass> expected_;  // goes backward next
  std::optional<Pass> going_forward_;
  StageSettings settings_;
  std::map<int64_t, MicrobatchPass> passes_;
};

}  // namespace

std::unique_ptr<StageRunner> make_expert_stages(StageParts parts, bool recomputes) {
  return std::make_unique<ExpertStages>(std::move(parts), recomputes);
}

}  // namespace swapline::trainer
