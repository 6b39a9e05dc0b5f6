// Stages, devices and models of a tiny run.
#include "tests/trainer/pipeline/tiny_run.h"

#include "tests/trainer/models/tiny_deepseek.h"
#include "trainer/models/deepseek_v3.h"
#include "trainer/models/llama3.h"
#include "trainer/pipeline/schedule_builders.h"

#include <utility>

#include <c10/core/GradMode.h>

namespace swapline::trainer {
namespace {

constexpr int64_t kSeqLen = 8;
constexpr int64_t kVocab = 64;

Llama3Shape tiny_llama(int64_t num_layers, bool is_tied) {
  Llama3Shape shape;
  shape.flavor = "tiny";
  shape.dim = 32;
  shape.num_layers = num_layers;
  shape.num_heads = 2;
  shape.num_kv_heads = 1;
  shape.ffn_dim = 48;
  shape.vocab_size = kVocab;
  shape.tied_head = is_tied;
  return shape;
}

// The module behind the last layer shares the embedding.
DeepseekV3Shape tiny_experts(int64_t num_layers, bool is_tied) {
  DeepseekV3Shape shape = tiny_deepseek();
  shape.num_layers = num_layers;
  shape.vocab_size = kVocab;
  shape.num_mtp_modules = is_tied ? 1 : 0;
  return shape;
}

int64_t num_mtp_layers(const TinyRunOptions& options) {
  return options.has_experts && options.has_tied_parameters ? 1 : 0;
}

std::string some_text() {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += static_cast<char>(1 + (i * i / 7 + i * 5) % (kVocab - 1));
  }
  return text;
}

Config config_of(const TinyRunOptions& options) {
  Config config;
  config.activation_checkpoint = options.recompute;
  config.swap_layer_input = options.swap;
  config.device.preset = "tiny";
  config.device.late_copies = options.late_copies;
  config.device.link_slowdown = options.link_slowdown;
  return config;
}

}  // namespace

TinyRun::TinyRun(const TinyRunOptions& options)
    : options_(options),
      config_(config_of(options)),
      devices_(make_sim_devices(
          config_.device, options.num_ranks * options.num_lanes, /*enable_trace=*/false)),
      data_(some_text(), kSeqLen) {
  make_layout();
  batches_ = std::make_unique<StepBatches>(
      data_, layout_.num_microbatches, layout_.num_lanes, layout_.microbatch_size);
  const auto num_lanes = static_cast<size_t>(options.num_lanes);
  for (size_t index = 0; index < devices_.size(); ++index) {
    const LayerPasses passes = {
        layout_.layers_in_a_pass(index / num_lanes, num_mtp_layers(options)),
        /*is_whole_model=*/options.num_ranks == 1};
    ranks_.push_back(std::make_unique<Rank>(config_, *devices_[index], passes));
    // The staging buffers' memory is there from now on: a fault later is not theirs.
    ranks_.back()->tokens.to_device(at::zeros({1, kSeqLen}, at::kLong));
  }
  make_models();
  make_stages();
}

void TinyRun::make_layout() {
  ScheduleRequest request;
  request.name = options_.schedule;
  request.num_ranks = options_.num_ranks;
  request.num_microbatches = options_.num_microbatches;
  request.overlap = options_.overlap;
  layout_.num_lanes = options_.num_lanes;
  layout_.num_microbatches = options_.num_microbatches;
  layout_.schedule = make_schedule(request);
  const std::vector<int64_t>& layers = options_.layers_per_stage;
  size_t first_layer = 0;
  for (size_t index = 0; index < layout_.schedule.rank_of_stage.size(); ++index) {
    Stage stage;
    stage.rank = static_cast<size_t>(layout_.schedule.rank_of_stage[index]);
    stage.first_layer = first_layer;
    stage.num_layers = static_cast<size_t>(layers[index % layers.size()]);
    stage.is_first = index == 0;
    stage.is_last = index + 1 == layout_.schedule.rank_of_stage.size();
    first_layer += stage.num_layers;
    layout_.stages.push_back(stage);
  }
}

std::unique_ptr<Model> TinyRun::make_model(size_t lane, ParameterFactory& parameters) const {
  const Placement placement = layout_.placement(lane, devices_);
  const auto num_layers = static_cast<int64_t>(placement.layers.size());
  if (options_.has_experts) {
    const DeepseekV3Options options{kSeqLen, {static_cast<int64_t>(lane), layout_.num_lanes}};
    return std::make_unique<DeepseekV3>(
        tiny_experts(num_layers, options_.has_tied_parameters), options, placement, parameters);
  }
  return std::make_unique<Llama3>(
      tiny_llama(num_layers, options_.has_tied_parameters), kSeqLen, placement, parameters);
}

void TinyRun::make_models() {
  for (size_t lane = 0; lane < static_cast<size_t>(options_.num_lanes); ++lane) {
    parameters_.emplace_back(at::kFloat, /*seed=*/42);
    models_.push_back(
        std::make_unique<FailingModel>(make_model(lane, parameters_.back()), countdown_));
    for (const NamedParameter& parameter : parameters_.back().parameters()) {
      ranks_[static_cast<size_t>(parameter.tensor.device().index())]->parameters.push_back(
          parameter);
    }
  }
  shared_ = std::make_unique<SharedGradients>(models_, ranks_);
}

void TinyRun::make_stages() {
  StageParts parts;
  parts.stages = layout_.stages;
  parts.num_microbatches = options_.num_microbatches;
  parts.recomputes_ahead = options_.recompute.recompute_ahead;
  parts.overlaps = options_.overlap;
  parts.models = &models_;
  parts.ranks = &ranks_;
  parts.batches = batches_.get();
  stages_ = options_.num_lanes > 1 ? make_expert_stages(parts, options_.recompute.mode == "full")
                                   : make_layer_stages(parts);
  evaluation_ = make_evaluation_stages(parts);
  const std::vector<int64_t> sizes = {layout_.microbatch_size, kSeqLen, tiny_deepseek().dim};
  pipeline_ = std::make_unique<Pipeline>(layout_.schedule, *stages_, sizes, at::kFloat);
  evaluation_pipeline_ =
      std::make_unique<Pipeline>(forwards_of(layout_.schedule), *evaluation_, sizes, at::kFloat);
}

at::Tensor TinyRun::backward() {
  batches_->advance();
  pipeline_->run([](size_t) {});
  shared_->add_up();
  shared_->balance();
  return stages_->take_loss(devices_.front()->torch_device()).cpu();
}

at::Tensor TinyRun::validate() {
  evaluation_pipeline_->run([](size_t) {});
  return evaluation_->take_loss(devices_.front()->torch_device()).cpu();
}

void TinyRun::descend() {
  const c10::NoGradGuard no_grad;
  for (const ParameterFactory& of_lane : parameters_) {
    for (const NamedParameter& parameter : of_lane.parameters()) {
      parameter.tensor.sub_(parameter.tensor.grad(), 0.05);
      parameter.tensor.mutable_grad() = at::Tensor();
    }
  }
}

void TinyRun::evaluate() {
  const c10::NoGradGuard no_grad;
  const at::Tensor tokens = at::arange(kSeqLen).view({1, kSeqLen});
  const Model& model = *models_.front();
  at::Tensor hidden = model.embed(ranks_.front()->tokens.to_device(tokens));
  for (const Stage& stage : layout_.stages) {
    const Rank& rank = *ranks_[stage.rank];
    hidden = rank.layers.run(std::span(model.layers()).subspan(stage.first_layer, stage.num_layers),
                             hidden.to(rank.device.torch_device(), /*non_blocking=*/true));
  }
  Rank& last = *ranks_[layout_.stages.back().rank];
  model.loss(hidden, last.tokens.to_device(tokens), [&](const LayerPtr& layer, at::Tensor input) {
    return last.layers.run({&layer, 1}, std::move(input));
  });
}

std::vector<at::Tensor> TinyRun::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const ParameterFactory& of_lane : parameters_) {
    for (const NamedParameter& parameter : of_lane.parameters()) {
      gradients.push_back(parameter.tensor.grad().cpu());
    }
  }
  return gradients;
}

LayerInputStats TinyRun::stats(size_t device) const {
  return ranks_[device]->layers.inputs()->stats();
}

size_t TinyRun::pinned_input_bytes() const {
  size_t bytes = 0;
  for (const auto& rank : ranks_) {
    rank->context->settle_all();
    bytes += rank->context->host().stats().requested_bytes;
  }
  return bytes;
}

}  // namespace swapline::trainer
