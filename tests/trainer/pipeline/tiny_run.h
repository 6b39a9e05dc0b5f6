// A training run without program and text files: a tiny model on simulated devices, put together
// from the trainer's parts as the trainer does it, with plain gradient descent.
#pragma once

#include "tests/trainer/pipeline/failing_model.h"
#include "trainer/batch_loader.h"
#include "trainer/parallel/layout.h"
#include "trainer/parallel/shared_gradients.h"
#include "trainer/pipeline/pipeline.h"
#include "trainer/pipeline/stage_runner.h"
#include "trainer/rank.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace swapline::trainer {

struct TinyRunOptions {
  bool has_experts = false;  // deepseek_v3, else llama3
  bool has_tied_parameters = false;
  std::string schedule = "1F1B";
  int num_ranks = 1;
  int num_lanes = 1;
  int num_microbatches = 1;
  bool overlap = false;
  std::vector<int64_t> layers_per_stage;  // in turn, as far as they go; then from the start again
  ActivationCheckpointConfig recompute;
  SwapLayerInputConfig swap;
  bool late_copies = false;
  double link_slowdown = 1;
};

class TinyRun {
 public:
  // A new machine: everything on the old one must be gone.
  explicit TinyRun(const TinyRunOptions& options);

  // Forwards and backwards of one step, then the sums of shared gradients. Returns the loss.
  at::Tensor backward();
  // Parameters follow their gradients, which go.
  void descend();
  // A forward of the whole model without grad, through the layers' inputs. On one lane only.
  void evaluate();
  // The loss of the micro-batches of the last step, forwards only, on any number of lanes.
  at::Tensor validate();
  // The model's `runs`-th next run of a layer throws.
  void fail_after(int64_t runs) { countdown_->runs_left = runs; }

  std::vector<at::Tensor> gradients() const;  // of all devices, on the CPU
  LayerInputStats stats(size_t device) const;
  bool has_inputs() const { return ranks_.front()->layers.inputs() != nullptr; }
  size_t num_devices() const { return devices_.size(); }
  size_t pinned_input_bytes() const;  // in use, once all copies are done
  const Layout& layout() const { return layout_; }

 private:
  void make_layout();
  void make_models();
  void make_stages();
  std::unique_ptr<Model> make_model(size_t lane, ParameterFactory& parameters) const;

  TinyRunOptions options_;
  Config config_;
  CountdownPtr countdown_ = std::make_shared<Countdown>();
  Devices devices_;
  Layout layout_;
  TextData data_;
  std::unique_ptr<StepBatches> batches_;
  Ranks ranks_;
  std::vector<ParameterFactory> parameters_;
  std::vector<std::unique_ptr<Model>> models_;
  std::unique_ptr<SharedGradients> shared_;
  std::unique_ptr<StageRunner> stages_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<StageRunner> evaluation_;
  std::unique_ptr<Pipeline> evaluation_pipeline_;
};

}  // namespace swapline::trainer
