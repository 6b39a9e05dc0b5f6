// A model whose layers count their runs, and give up in one of them.
#pragma once

#include "trainer/models/model.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace swapline::trainer {

// Runs of layers until one throws; below 0: none does. Shared by the layers of all lanes.
struct Countdown {
  int64_t runs_left = -1;

  void count() {
    if (runs_left == 0) {
      throw std::runtime_error("a layer gives up");
    }
    --runs_left;
  }
};
using CountdownPtr = std::shared_ptr<Countdown>;

class CountedLayer : public Layer {
 public:
  CountedLayer(LayerPtr inner, CountdownPtr countdown)
      : inner_(std::move(inner)), countdown_(std::move(countdown)) {}

  at::Tensor forward(const at::Tensor& hidden_states, const PartRunner& parts) const override {
    countdown_->count();
    return inner_->forward(hidden_states, parts);
  }

 private:
  LayerPtr inner_;
  CountdownPtr countdown_;
};

class CountedExpertLayer : public ExpertLayer {
 public:
  CountedExpertLayer(std::shared_ptr<const ExpertLayer> inner, CountdownPtr countdown)
      : inner_(std::move(inner)), countdown_(std::move(countdown)) {}

  at::Tensor forward(const at::Tensor& hidden_states, const PartRunner& parts) const override {
    countdown_->count();
    return inner_->forward(hidden_states, parts);
  }
  Routed route(const at::Tensor& hidden_states, bool counts) const override {
    countdown_->count();
    return inner_->route(hidden_states, counts);
  }
  std::vector<int64_t> known_counts(const Routed& routed) const override {
    return inner_->known_counts(routed);
  }
  Attended attend(const Routed& routed) const override {
    countdown_->count();
    return inner_->attend(routed);
  }
  at::Tensor experts(const at::Tensor& tokens,
                     const at::Tensor& weights,
                     const std::vector<int64_t>& counts) const override {
    countdown_->count();
    return inner_->experts(tokens, weights, counts);
  }
  at::Tensor merge(const at::Tensor& residual,
                   const at::Tensor& returned,
                   const at::Tensor& places) const override {
    countdown_->count();
    return inner_->merge(residual, returned, places);
  }

 private:
  std::shared_ptr<const ExpertLayer> inner_;
  CountdownPtr countdown_;
};

class FailingModel : public Model {
 public:
  FailingModel(std::unique_ptr<Model> inner, const CountdownPtr& countdown)
      : inner_(std::move(inner)) {
    for (const LayerPtr& layer : inner_->layers()) {
      if (auto expert = std::dynamic_pointer_cast<const ExpertLayer>(layer)) {
        layers_.push_back(std::make_shared<CountedExpertLayer>(std::move(expert), countdown));
      } else {
        layers_.push_back(std::make_shared<CountedLayer>(layer, countdown));
      }
    }
  }

  at::Tensor embed(const at::Tensor& tokens) const override { return inner_->embed(tokens); }
  const std::vector<LayerPtr>& layers() const override { return layers_; }
  at::Tensor loss(const at::Tensor& hidden_states,
                  const at::Tensor& targets,
                  const RunLayer& run_layer) const override {
    return inner_->loss(hidden_states, targets, run_layer);
  }
  std::vector<TiedParameters> tied_parameters() const override { return inner_->tied_parameters(); }
  std::vector<at::Tensor> expert_loads() const override { return inner_->expert_loads(); }
  void set_counting(bool counts) override { inner_->set_counting(counts); }
  void balance(const std::vector<at::Tensor>& loads) override { inner_->balance(loads); }

 private:
  std::unique_ptr<Model> inner_;
  std::vector<LayerPtr> layers_;
};

}  // namespace swapline::trainer
