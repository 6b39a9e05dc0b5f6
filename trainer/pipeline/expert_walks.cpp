// Forward, inputs are saved as layers come; backward, they are taken in the reverse order.
#include "trainer/pipeline/expert_walks.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

namespace swapline::trainer {

std::vector<const ExpertLayer*> StageSetting::experts_of(size_t layer) const {
  std::vector<const ExpertLayer*> found;
  for (const auto& of_lane : layers) {
    if (const auto* expert = dynamic_cast<const ExpertLayer*>(of_lane[layer].get())) {
      found.push_back(expert);
    }
  }
  return found;
}

ForwardWalk::ForwardWalk(const StageSetting& setting, MicrobatchPass& pass, PerLane hidden_states)
    : setting_(setting), pass_(pass), hidden_(std::move(hidden_states)) {
  pass_.layers.resize(setting_.num_layers());
}

void ForwardWalk::advance() {
  if (tokens_at_experts_) {
    pass_.layers[next_].expert->experts();
    tokens_at_experts_ = false;
    is_merging_ = true;
    return;
  }
  if (std::exchange(is_merging_, false)) {
    hidden_ = pass_.layers[next_].expert->merge();
    finish_layer();
  }
  while (next_ < pass_.layers.size()) {
    LayerPass& layer = pass_.layers[next_];
    const std::vector<const ExpertLayer*> experts = setting_.experts_of(next_);
    save_inputs(layer);
    if (!experts.empty()) {
      layer.expert.emplace(LayerOnLanes{
          experts, setting_.forward_lanes, setting_.backward_lanes, setting_.recomputes()});
      layer.expert->attend(std::move(hidden_));
      tokens_at_experts_ = true;
      return;
    }
    run_whole(layer);
    finish_layer();
  }
  is_done_ = true;
}

void ForwardWalk::save_inputs(LayerPass& layer) {
  for (size_t lane = 0; setting_.recomputes() && lane < setting_.num_lanes(); ++lane) {
    const SavedInput* before = next_ == 0 ? nullptr : &pass_.layers[next_ - 1].saved[lane];
    layer.saved.push_back(setting_.inputs[lane]->save(hidden_[lane], before));
  }
}

void ForwardWalk::run_whole(LayerPass& layer) {
  const at::AutoGradMode grad_mode(!setting_.recomputes());
  const PartRunner parts;
  for (size_t lane = 0; lane < setting_.num_lanes(); ++lane) {
    at::Tensor input = std::exchange(hidden_[lane], {});
    if (!setting_.recomputes()) {
      layer.inputs.push_back(input = as_leaf(input));
    }
    const at::Tensor output = setting_.layers[lane][next_]->forward(input, parts);
    hidden_[lane] = output.detach();
    if (!setting_.recomputes()) {
      layer.outputs.push_back(output);
    }
  }
}

void ForwardWalk::finish_layer() {
  for (SavedInput& saved : pass_.layers[next_].saved) {
    saved.layer_done();
  }
  ++next_;
}

BackwardWalk::BackwardWalk(const StageSetting& setting,
                           MicrobatchPass& pass,
                           PerLane gradients,
                           std::function<void()> on_last_input)
    : setting_(setting),
      pass_(pass),
      gradients_(std::move(gradients)),
      on_last_input_(std::move(on_last_input)) {}

void BackwardWalk::advance() {
  if (tokens_at_experts_) {
    pass_.layers.back().expert->experts_backward();
    tokens_at_experts_ = false;
    is_ending_ = true;
    return;
  }
  if (std::exchange(is_ending_, false)) {
    gradients_ = pass_.layers.back().expert->attend_backward();
    finish_layer();
  }
  while (!pass_.layers.empty()) {
    LayerPass& layer = pass_.layers.back();
    PerLane inputs;
    for (SavedInput& saved : layer.saved) {
      inputs.push_back(saved.take());
    }
    if (pass_.layers.size() == 1) {
      on_last_input_();
    }
    if (layer.expert) {
      layer.expert->attend_again(std::move(inputs), gradients_);
      gradients_.clear();
      tokens_at_experts_ = true;
      return;
    }
    run_whole(layer, std::move(inputs));
    finish_layer();
  }
  is_done_ = true;
}

void BackwardWalk::run_whole(LayerPass& layer, PerLane inputs) {
  const at::AutoGradMode with_grad(true);
  const PartRunner parts;
  const size_t index = pass_.layers.size() - 1;
  for (size_t lane = 0; lane < setting_.num_lanes(); ++lane) {
    at::Tensor input;
    at::Tensor output;
    if (setting_.recomputes()) {
      input = as_leaf(std::exchange(inputs[lane], {}));
      output = setting_.layers[lane][index]->forward(input, parts);
    } else {
      input = std::exchange(layer.inputs[lane], {});
      output = std::exchange(layer.outputs[lane], {});
    }
    torch::autograd::backward({output}, {std::exchange(gradients_[lane], {})});
    gradients_[lane] = input.grad();
  }
}

void BackwardWalk::finish_layer() {
  for (SavedInput& saved : pass_.layers.back().saved) {
    saved.finish();
  }
  pass_.layers.pop_back();
}

}  // namespace swapline::trainer
