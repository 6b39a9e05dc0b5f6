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

void ExpertWalk::send() {
  if (shipment_) {
    std::vector<Shipment> shipments;
    shipments.push_back(*std::exchange(shipment_, std::nullopt));
    under_way_.emplace(lanes_.exchange(std::move(shipments)));
  }
}

void ExpertWalk::send_together(ExpertWalk& a, ExpertWalk& b) {
  std::vector<Shipment> shipments;
  std::vector<ExpertWalk*> walks;
  for (ExpertWalk* walk : {&a, &b}) {
    if (walk->shipment_) {
      shipments.push_back(*std::exchange(walk->shipment_, std::nullopt));
      walks.push_back(walk);
    }
  }
  if (walks.empty()) {
    return;
  }
  std::vector<std::vector<PerLane>> arrived = a.lanes_.exchange(std::move(shipments)).wait();
  for (size_t i = 0; i < walks.size(); ++i) {
    walks[i]->arrived_ = std::move(arrived[i]);
  }
}

std::vector<PerLane> ExpertWalk::take_arrived() {
  if (under_way_) {
    arrived_ = std::move(under_way_->wait().front());
    under_way_.reset();
  }
  return std::move(arrived_);
}

ForwardWalk::ForwardWalk(const StageSetting& setting, MicrobatchPass& pass, PerLane hidden_states)
    : ExpertWalk(*setting.forward_lanes),
      setting_(setting),
      pass_(pass),
      hidden_(std::move(hidden_states)) {
  pass_.layers.resize(setting_.num_layers());
}

void ForwardWalk::advance() {
  switch (piece_) {
    case Piece::kRoute:
      begin_layers();
      break;
    case Piece::kAttend:
      leave(pass_.layers[next_].expert->attend());
      piece_ = Piece::kExperts;
      break;
    case Piece::kExperts:
      leave(pass_.layers[next_].expert->experts(take_arrived()));
      piece_ = Piece::kMerge;
      break;
    case Piece::kMerge:
      hidden_ = pass_.layers[next_].expert->merge(take_arrived());
      finish_layer();
      begin_layers();
      break;
    case Piece::kNone:
      break;
  }
}

std::optional<int64_t> ForwardWalk::num_bytes_to_experts() const {
  if (piece_ != Piece::kAttend) {
    return std::nullopt;
  }
  return pass_.layers[next_].expert->num_bytes_to_experts();
}

void ForwardWalk::begin_layers() {
  for (; next_ < pass_.layers.size(); finish_layer()) {
    LayerPass& layer = pass_.layers[next_];
    const std::vector<const ExpertLayer*> experts = setting_.experts_of(next_);
    save_inputs(layer);
    if (!experts.empty()) {
      layer.expert.emplace(LayerOnLanes{experts, setting_.counts, setting_.recomputes});
      layer.expert->route(std::move(hidden_));
      piece_ = Piece::kAttend;
      return;
    }
    run_whole(layer);
  }
  piece_ = Piece::kNone;
}

void ForwardWalk::save_inputs(LayerPass& layer) {
  for (size_t lane = 0; lane < setting_.inputs.size(); ++lane) {
    const SavedInput* before = next_ == 0 ? nullptr : &pass_.layers[next_ - 1].saved[lane];
    layer.saved.push_back(setting_.inputs[lane]->save(hidden_[lane], before));
  }
}

void ForwardWalk::run_whole(LayerPass& layer) {
  const at::AutoGradMode grad_mode(!setting_.recomputes);
  const PartRunner parts;
  for (size_t lane = 0; lane < setting_.num_lanes(); ++lane) {
    at::Tensor input = std::exchange(hidden_[lane], {});
    if (!setting_.recomputes) {
      layer.inputs.push_back(input = as_leaf(input));
    }
    const at::Tensor output = setting_.layers[lane][next_]->forward(input, parts);
    hidden_[lane] = output.detach();
    if (!setting_.recomputes) {
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
                           std::function<PerLane()> receive,
                           std::function<void()> on_last_input)
    : ExpertWalk(*setting.backward_lanes),
      setting_(setting),
      pass_(pass),
      receive_(std::move(receive)),
      on_last_input_(std::move(on_last_input)) {}

void BackwardWalk::advance() {
  switch (piece_) {
    case Piece::kAgain:
      begin_layers();
      break;
    case Piece::kExperts:
      leave(pass_.layers.back().expert->experts_backward(take_arrived()));
      piece_ = Piece::kAttend;
      break;
    case Piece::kAttend:
      gradients_ = pass_.layers.back().expert->attend_backward(take_arrived());
      finish_layer();
      piece_ = pass_.layers.empty() ? Piece::kNone : Piece::kAgain;
      break;
    case Piece::kNone:
      break;
  }
}

void BackwardWalk::begin_layers() {
  for (; !pass_.layers.empty(); finish_layer()) {
    LayerPass& layer = pass_.layers.back();
    PerLane inputs;
    for (SavedInput& saved : layer.saved) {
      inputs.push_back(saved.take());
    }
    if (pass_.layers.size() == 1) {
      on_last_input_();
    }
    if (layer.expert) {
      layer.expert->attend_again(std::move(inputs));
      leave(layer.expert->send_gradients(take_gradients()));
      piece_ = Piece::kExperts;
      return;
    }
    run_whole(layer, std::move(inputs));
  }
  piece_ = Piece::kNone;
}

PerLane BackwardWalk::take_gradients() {
  return receive_ ? std::exchange(receive_, nullptr)() : std::move(gradients_);
}

void BackwardWalk::run_whole(LayerPass& layer, PerLane inputs) {
  const at::AutoGradMode with_grad(true);
  const PartRunner parts;
  const size_t index = pass_.layers.size() - 1;
  for (size_t lane = 0; setting_.recomputes && lane < setting_.num_lanes(); ++lane) {
    layer.inputs.push_back(as_leaf(std::exchange(inputs[lane], {})));
    layer.outputs.push_back(setting_.layers[lane][index]->forward(layer.inputs[lane], parts));
  }
  PerLane of_output = take_gradients();
  gradients_.assign(setting_.num_lanes(), {});
  for (size_t lane = 0; lane < setting_.num_lanes(); ++lane) {
    const at::Tensor input = std::exchange(layer.inputs[lane], {});
    torch::autograd::backward({std::exchange(layer.outputs[lane], {})},
                              {std::exchange(of_output[lane], {})});
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
