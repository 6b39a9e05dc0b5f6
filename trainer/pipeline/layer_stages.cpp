// Stages whose layers LayerRunner runs: one autograd graph for each micro-batch of each stage.
#include "trainer/pipeline/stage_graph.h"
#include "trainer/pipeline/stage_runner.h"

#include <map>
#include <optional>
#include <utility>

#include <torch/csrc/autograd/autograd.h>

namespace swapline::trainer {
namespace {

class LayerStages : public StageRunner {
 public:
  using StageRunner::StageRunner;

  PerLane forward(Pass pass, PerLane hidden_states) override {
    const Stage& stage = parts_.stage(pass);
    const LayerRunner& layers = parts_.rank(stage, 0).layers;
    begin_microbatch(pass);
    StageGraph graph;
    at::Tensor hidden = stage.is_first ? embedded(stage, pass.microbatch, 0)
                                       : graph.enter(std::exchange(hidden_states.front(), {}));
    hidden = layers.run(parts_.layers(stage, 0), std::move(hidden));
    MicrobatchPass& state = passes_[parts_.id(pass)];
    if (parts_.stages.size() == 1) {
      graph.end_in_loss(loss_of(stage, pass, std::move(hidden)));
      state.graph = std::move(graph);
      return {};
    }
    at::Tensor output = graph.leave(std::exchange(hidden, {}));
    state.graph = std::move(graph);
    if (!stage.is_last) {
      return {std::move(output)};
    }
    state.loss_gradient = gradient_of_loss(stage, pass, std::move(output));
    if (expected_ == pass) {
      // Layers behind the last one (MTP) would have pushed its input out.
      prefetch(pass);
    }
    return {};
  }

  PerLane backward(Pass pass, const Receive& receive) override {
    recompute_ahead(pass);
    PerLane gradients = receive();
    MicrobatchPass state = std::move(passes_.extract(parts_.id(pass)).mapped());
    at::Tensor gradient = std::move(state.loss_gradient);
    if (!gradients.empty()) {
      gradient = std::exchange(gradients.front(), {});
    }
    const NotCounting not_counting(parts_.model(0));
    gradient = state.graph.backward(std::move(gradient));
    return parts_.stage(pass).is_first ? PerLane() : PerLane{std::move(gradient)};
  }

  void will_go_backward(Pass pass) override {
    expected_ = pass;
    prefetch(pass);
  }

 private:
  // A micro-batch in a stage, from forward to backward.
  struct MicrobatchPass {
    StageGraph graph;
    at::Tensor loss_gradient;  // in a pipeline's last stage
  };

  // While layers run again in backward.
  class NotCounting {
   public:
    explicit NotCounting(Model& model) : model_(model) { model_.set_counting(false); }
    ~NotCounting() { model_.set_counting(true); }
    NotCounting(const NotCounting&) = delete;
    NotCounting& operator=(const NotCounting&) = delete;

   private:
    Model& model_;
  };

  void recompute_ahead(Pass pass) const {
    LayerInputs* inputs = parts_.rank(parts_.stage(pass), 0).layers.inputs();
    if (parts_.recomputes_ahead && inputs != nullptr && !parts_.stage(pass).is_last) {
      inputs->recompute_ahead(parts_.id(pass));
    }
  }

  at::Tensor loss_of(const Stage& stage, Pass pass, at::Tensor hidden) {
    const auto run_layer = [&](const LayerPtr& layer, at::Tensor input) {
      return parts_.rank(stage, 0).layers.run({&layer, 1}, std::move(input));
    };
    return loss(stage, pass.microbatch, 0, std::move(hidden), run_layer);
  }

  // The last stage of a pipeline goes back through the loss at once: so the logits of one
  // micro-batch at most are there, however many forwards come before its backward.
  at::Tensor gradient_of_loss(const Stage& stage, Pass pass, at::Tensor hidden) {
    const at::Tensor leaf = std::exchange(hidden, {}).set_requires_grad(true);
    begin_loss(pass);
    const at::Tensor loss = loss_of(stage, pass, leaf);
    const NotCounting not_counting(parts_.model(0));
    torch::autograd::backward({loss});
    return leaf.grad();
  }

  std::map<int64_t, MicrobatchPass> passes_;
  std::optional<Pass> expected_;  // goes backward next
};

}  // namespace

std::unique_ptr<StageRunner> make_layer_stages(StageParts parts) {
  return std::make_unique<LayerStages>(std::move(parts));
}

}  // namespace swapline::trainer
