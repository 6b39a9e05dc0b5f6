// The training loop.
#include "trainer/trainer.h"

#include "trainer/run_summary.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace swapline::trainer {

Trainer::Trainer(const Config& config,
                 Layout layout,
                 const Devices& devices,
                 std::shared_ptr<FileOps> checkpoint_ops)
    : config_(config),
      devices_(devices),
      layout_(std::move(layout)),
      figures_(model_figures(config)),
      dtype_(config.training.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat),
      data_(read_texts(config.data.path), config.training.seq_len),
      batches_(data_, layout_.num_microbatches, layout_.num_lanes, layout_.microbatch_size),
      schedule_(config.lr_scheduler, config.lr_total_steps()) {
  const bool is_pipeline = layout_.num_ranks() > 1;
  for (size_t index = 0; index < devices_.size(); ++index) {
    const size_t rank = index / static_cast<size_t>(layout_.num_lanes);
    const LayerPasses passes = {layout_.layers_in_a_pass(rank, figures_.num_mtp_layers),
                                /*is_whole_model=*/!is_pipeline};
    ranks_.push_back(std::make_unique<Rank>(config, *devices_[index], passes));
  }
  make_models();
  make_optimizers();
  StageParts parts;
  parts.stages = layout_.stages;
  parts.num_microbatches = static_cast<int>(layout_.num_microbatches);
  parts.recomputes_ahead = config.activation_checkpoint.recompute_ahead;
  parts.overlaps = config.parallelism.moe_fb_overlap;
  parts.models = &models_;
  parts.ranks = &ranks_;
  parts.batches = &batches_;
  stages_ = layout_.num_lanes > 1
                ? make_expert_stages(parts, config.activation_checkpoint.mode == "full")
                : make_layer_stages(parts);
  pipeline_ = std::make_unique<Pipeline>(
      layout_.schedule,
      *stages_,
      std::vector<int64_t>{layout_.microbatch_size, config.training.seq_len, figures_.dim},
      dtype_);
  if (config.validator.enable) {
    validator_ =
        std::make_unique<Validator>(config, layout_, devices_, parts, validation_texts(config));
  }
  state_.data_bytes = data_.size();
  if (config.checkpoint.enable) {
    checkpoints_ = std::make_unique<Checkpoints>(
        config, saved_tensors(models_, parameters_, ranks_), std::move(checkpoint_ops));
  }
}

void Trainer::make_models() {
  for (int64_t lane = 0; lane < layout_.num_lanes; ++lane) {
    parameters_.emplace_back(dtype_, config_.debug.seed);
    models_.push_back(make_model(config_,
                                 layout_.placement(static_cast<size_t>(lane), devices_),
                                 {lane, layout_.num_lanes},
                                 parameters_.back()));
  }
}

// Each device's parameters to its optimizer. Gradients count for the norm in the model's order, one
// copy of each that several devices hold.
void Trainer::make_optimizers() {
  std::vector<std::vector<NamedParameter>> by_device(devices_.size());
  for (size_t lane = 0; lane < models_.size(); ++lane) {
    std::vector<at::Tensor> copies;
    for (const auto& [one, other] : models_[lane]->tied_parameters()) {
      copies.push_back(other.tensor);
    }
    for (const NamedParameter& parameter : parameters_[lane].parameters()) {
      const auto device = static_cast<size_t>(
          parameter.tensor.device().is_cpu() ? 0 : parameter.tensor.device().index());
      const bool is_copy = std::any_of(copies.begin(), copies.end(), [&](const at::Tensor& copy) {
        return copy.is_same(parameter.tensor);
      });
      if (!is_copy && (lane == 0 || parameter.is_sharded)) {
        counted_gradients_.emplace_back(device, by_device[device].size());
      }
      by_device[device].push_back(parameter);
    }
  }
  for (size_t device = 0; device < ranks_.size(); ++device) {
    ranks_[device]->make_optimizer(config_, std::move(by_device[device]));
  }
  shared_ = std::make_unique<SharedGradients>(models_, ranks_);
}

RunSummary Trainer::run() {
  const RateBasis basis = rate_basis();
  const int64_t num_steps = config_.training.steps;
  ProgressBar bar(config_.metrics.progress_bar, num_steps);
  StepLog log(devices_, config_.metrics.log_freq, [&](const std::vector<StepRecord>& steps) {
    bar.clear();
    std::printf("%s\n", log_line(steps, basis).c_str());
    std::fflush(stdout);
  });
  if (!go_on_from_checkpoint(log)) {
    return {};
  }
  int64_t misses_in_first_step = 0;
  std::vector<ValidationRecord> validation;
  const int64_t first_step = state_.step + 1;
  for (int64_t step = first_step; step <= num_steps; ++step) {
    StepMarks marks = take_step(step);
    end_step(step, marks, bar);
    if (step == first_step) {
      pinned_allocations_in_first_step_ = num_pinned_allocations();
      misses_in_first_step = summarize_layer_inputs(ranks_, 1).prefetch_misses;
    }
    log.add(std::move(marks));
    if (validator_ != nullptr && validator_->is_due(step)) {
      log.finish();  // its line comes first
      validation.push_back(validator_->run(step));
      bar.clear();
      std::printf("%s\n", validation_line(validation.back(), basis).c_str());
      std::fflush(stdout);
    }
    bar.draw(step);
  }
  if (checkpoints_ != nullptr) {
    checkpoints_->wait();
  }
  log.finish();
  RunSummary summary = summarize(devices_, ranks_, log);
  summary.validation = std::move(validation);
  summary.model_name = config_.model.name;
  summary.model_flavor = config_.model.flavor;
  summary.num_parameters = figures_.num_parameters;
  summary.num_layers = figures_.num_layers;
  summary.host.pinned_allocations_after_first_step =
      num_pinned_allocations() - pinned_allocations_in_first_step_;
  summary.layer_input.prefetch_misses_after_first_step =
      summary.layer_input.prefetch_misses - misses_in_first_step;
  summary.optimizer.swap = config_.optimizer.swap_optimizer;
  summary.optimizer.state_bytes_on_device_outside_step = state_bytes_outside_step_;
  return summary;
}

bool Trainer::go_on_from_checkpoint(StepLog& log) {
  if (checkpoints_ == nullptr) {
    return true;
  }
  const std::string loaded = checkpoints_->load(state_);
  if (!loaded.empty()) {
    data_.seek(state_.data_position);
    std::printf("checkpoint: loaded %s, %ld steps taken before\n",
                loaded.c_str(),
                static_cast<long>(state_.step));
  }
  for (const auto& device : devices_) {
    log.note_memory(device->memory());
  }
  return state_.step < config_.training.steps;
}

StepMarks Trainer::take_step(int64_t step) {
  StepMarks marks;
  marks.step = step;
  marks.devices.resize(devices_.size());
  for (size_t i = 0; i < devices_.size(); ++i) {
    devices_[i]->reset_peak_memory();
    marks.devices[i].begin = devices_[i]->mark();
    ranks_[i]->optimizer->zero_grad();
  }
  batches_.advance();
  const auto num_lanes = static_cast<size_t>(layout_.num_lanes);
  pipeline_->run([&](size_t rank) {
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      state_bytes_outside_step_ =
          std::max(state_bytes_outside_step_,
                   ranks_[rank * num_lanes + lane]->optimizer->device_state_bytes());
    }
  });
  for (size_t i = 0; i < devices_.size(); ++i) {
    marks.devices[i].optimizer_begin = devices_[i]->mark();
    ranks_[i]->optimizer->prefetch();
  }
  shared_->add_up();
  const at::Tensor grad_norm =
      clip_grad_norm(gradients(), counted_gradients_, config_.training.max_norm);
  const double factor = schedule_.factor(state_.schedule_step);
  if (checkpoints_ != nullptr) {
    checkpoints_->wait();  // it reads what the optimizers change
  }
  for (const auto& rank : ranks_) {
    rank->set_lr_factor(factor);
    rank->optimizer->step();
  }
  shared_->balance();
  for (size_t i = 0; i < devices_.size(); ++i) {
    marks.devices[i].end = devices_[i]->mark();
  }
  const at::Tensor loss = stages_->take_loss(devices_.front()->torch_device());
  marks.loss_and_grad_norm = ScalarCopy({loss, grad_norm}, ranks_.front()->staging.get());
  for (size_t i = 0; i < devices_.size(); ++i) {
    marks.devices[i].exposed = ranks_[i]->waits->take();
  }
  return marks;
}

// Here memory is read: what a save needs counts too.
void Trainer::end_step(int64_t step, StepMarks& marks, ProgressBar& bar) {
  state_.step = step;
  state_.num_tokens += layout_.sequences_per_step() * config_.training.seq_len;
  ++state_.schedule_step;
  state_.data_position = data_.position();
  const std::string saved = checkpoints_ == nullptr ? "" : checkpoints_->save_if_due(state_);
  if (!saved.empty()) {
    bar.clear();
    std::printf("checkpoint: %s %s\n",
                config_.checkpoint.async_mode == "disabled" ? "saved" : "saving",
                saved.c_str());
  }
  for (size_t i = 0; i < devices_.size(); ++i) {
    marks.devices[i].memory = devices_[i]->memory();
  }
}

std::vector<std::vector<at::Tensor>> Trainer::gradients() const {
  std::vector<std::vector<at::Tensor>> gradients;
  for (const auto& rank : ranks_) {
    gradients.push_back(rank->gradients());
  }
  return gradients;
}

RateBasis Trainer::rate_basis() const {
  RateBasis basis;
  basis.tokens_per_step = layout_.sequences_per_step() * config_.training.seq_len;
  basis.flops_per_token = figures_.flops_per_token;
  basis.peak_flops = devices_.front()->peak_flops(dtype_) * static_cast<double>(devices_.size());
  basis.capacity_bytes = devices_.front()->memory().capacity_bytes;
  return basis;
}

int64_t Trainer::num_pinned_allocations() const {
  int64_t total = 0;
  for (const auto& rank : ranks_) {
    total += rank->num_pinned_allocations();
  }
  return total;
}

}  // namespace swapline::trainer
