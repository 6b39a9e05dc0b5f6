// Runs micro-batches through the stages of a model, forward and backward. What the order is, and
// how tensors get from stage to stage, is the pipeline's business.
#pragma once

#include "trainer/batch_loader.h"
#include "trainer/models/model.h"
#include "trainer/parallel/lanes.h"
#include "trainer/pipeline/schedule.h"
#include "trainer/rank.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// A stretch of the model's layers. The first stage embeds, the last one has the loss.
struct Stage {
  size_t rank = 0;  // of the pipeline
  size_t first_layer = 0;
  size_t num_layers = 0;
  bool is_first = false;
  bool is_last = false;
};

// All that stages are run with. One model for each lane; the device of (rank, lane) is
// ranks[rank * number of lanes + lane]. Everything must outlive the runner.
struct StageParts {
  std::vector<Stage> stages;
  int num_microbatches = 1;
  bool recomputes_ahead = false;
  bool overlaps = false;  // a forward is run against another micro-batch's backward
  std::vector<std::unique_ptr<Model>>* models = nullptr;
  Ranks* ranks = nullptr;
  StepBatches* batches = nullptr;

  size_t num_lanes() const { return models->size(); }
  const Stage& stage(const Pass& pass) const { return stages[static_cast<size_t>(pass.stage)]; }
  Model& model(size_t lane) const { return *(*models)[lane]; }
  Rank& rank(const Stage& stage, size_t lane) const {
    return *(*ranks)[stage.rank * num_lanes() + lane];
  }
  std::span<const LayerPtr> layers(const Stage& stage, size_t lane) const {
    return std::span(model(lane).layers()).subspan(stage.first_layer, stage.num_layers);
  }
  // Others come between a forward and its backward.
  bool has_passes_in_flight() const { return stages.size() > 1 || overlaps; }
  // The name of a pass in hints to LayerInputs.
  int64_t id(const Pass& pass) const {
    return static_cast<int64_t>(pass.stage) * num_microbatches + pass.microbatch;
  }
};

class StageRunner {
 public:
  explicit StageRunner(StageParts parts) : parts_(std::move(parts)), losses_(parts_.num_lanes()) {}
  virtual ~StageRunner() = default;
  StageRunner(const StageRunner&) = delete;
  StageRunner& operator=(const StageRunner&) = delete;

  // From the output of the stage before (nothing for the first) to the stage's own (nothing for
  // the last, which keeps the loss).
  virtual PerLane forward(Pass pass, PerLane hidden_states) = 0;
  // How a pass gets what it starts from: behind it, the devices wait for that.
  using Receive = std::function<PerLane()>;
  // From the gradient of the output (nothing for the last stage) to that of the input (nothing for
  // the first). What does not need the gradient may be run before it is received.
  virtual PerLane backward(Pass pass, const Receive& receive) = 0;

  // And how it passes on what it ends with.
  struct Ends {
    Receive receive;
    std::function<void(PerLane)> send;
  };
  // A forward and a backward, neither of which needs the other. Each receives as late as it can and
  // sends as soon as it can.
  virtual void overlapped(Pass forward_pass,
                          const Ends& forward_ends,
                          Pass backward_pass,
                          const Ends& backward_ends);

  // `pass` goes backward in the action after the one that comes now.
  virtual void will_go_backward(Pass pass) { prefetch(pass); }

  const StageParts& parts() const { return parts_; }
  // The mean loss of the micro-batches and lanes since the last call; a scalar on `device`.
  at::Tensor take_loss(c10::Device device);

 protected:
  // Tokens come from the step's batches, and the loss counts for the mean over all of them.
  at::Tensor embedded(const Stage& stage, int microbatch, size_t lane);
  at::Tensor loss(const Stage& stage,
                  int microbatch,
                  size_t lane,
                  at::Tensor hidden_states,
                  const RunLayer& run_layer);
  void begin_microbatch(Pass pass);
  // Layers that run inside the loss of the last stage are a pass of their own.
  void begin_loss(Pass pass);
  // Brings back the input that its backward needs first.
  void prefetch(Pass pass);

  StageParts parts_;

 private:
  void name_pass(Pass pass, int64_t id);

  PerLane losses_;
};

// Lanes of one: each stage's layers in one autograd graph.
std::unique_ptr<StageRunner> make_layer_stages(StageParts parts);
// Lanes that share experts: layer by layer and piece by piece, so that tokens travel between them
// and a forward can be run against a backward. `recomputes`: layers run again in backward.
std::unique_ptr<StageRunner> make_expert_stages(StageParts parts, bool recomputes);
// Forwards only, on any number of lanes: nothing is recomputed, swapped or counted for the load
// balance.
std::unique_ptr<StageRunner> make_evaluation_stages(StageParts parts);

}  // namespace swapline::trainer
