// What all stage runners share: the two ends of the model, and hints.
#include "trainer/pipeline/stage_runner.h"

#include <utility>

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>

namespace swapline::trainer {

void StageRunner::overlapped(Pass forward_pass,
                             const Ends& forward_ends,
                             Pass backward_pass,
                             const Ends& backward_ends) {
  forward_ends.send(forward(forward_pass, forward_ends.receive()));
  backward_ends.send(backward(backward_pass, backward_ends.receive));
}

void StageRunner::prefetch(Pass pass) {
  for (size_t lane = 0; lane < parts_.num_lanes(); ++lane) {
    if (LayerInputs* inputs = parts_.rank(parts_.stage(pass), lane).layers.inputs()) {
      inputs->prefetch(parts_.id(pass));
    }
  }
}

void StageRunner::begin_microbatch(Pass pass) {
  name_pass(pass, parts_.id(pass));
}

void StageRunner::begin_loss(Pass pass) {
  name_pass(pass, -1 - parts_.id(pass));
}

void StageRunner::name_pass(Pass pass, int64_t id) {
  for (size_t lane = 0; parts_.has_passes_in_flight() && lane < parts_.num_lanes(); ++lane) {
    if (LayerInputs* inputs = parts_.rank(parts_.stage(pass), lane).layers.inputs()) {
      inputs->begin_microbatch(id);
    }
  }
}

at::Tensor StageRunner::embedded(const Stage& stage, int microbatch, size_t lane) {
  const at::Tensor& tokens = parts_.batches->of(microbatch, lane).tokens;
  return parts_.model(lane).embed(parts_.rank(stage, lane).tokens.to_device(tokens));
}

at::Tensor StageRunner::loss(const Stage& stage,
                             int microbatch,
                             size_t lane,
                             at::Tensor hidden_states,
                             const RunLayer& run_layer) {
  Rank& rank = parts_.rank(stage, lane);
  if (rank.context != nullptr) {
    // What a host that runs ahead still holds for copies of the last step goes before the logits,
    // the largest tensor of the step, take their place.
    rank.context->settle_all();
  }
  const at::Tensor targets = rank.tokens.to_device(parts_.batches->of(microbatch, lane).targets);
  at::Tensor loss = parts_.model(lane).loss(std::move(hidden_states), targets, run_layer);
  const auto num_losses =
      static_cast<double>(parts_.num_microbatches) * static_cast<double>(parts_.num_lanes());
  if (num_losses > 1) {
    loss = at::div(loss, num_losses);
  }
  at::Tensor& total = losses_[lane];
  total = total.defined() ? at::add(total, loss.detach()) : loss.detach();
  return loss;
}

at::Tensor StageRunner::take_loss(c10::Device device) {
  at::Tensor sum;
  for (const at::Tensor& loss : std::exchange(losses_, PerLane(parts_.num_lanes()))) {
    const at::Tensor here = loss.to(device, /*non_blocking=*/true);
    sum = sum.defined() ? at::add(sum, here) : here;
  }
  return sum;
}

}  // namespace swapline::trainer
