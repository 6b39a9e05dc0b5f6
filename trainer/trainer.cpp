// The training loop.
#include "trainer/trainer.h"

#include "trainer/clip.h"

#include <algorithm>
#include <cstdio>

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>

namespace swapline::trainer {
namespace {

Llama3Shape shape_of(const ModelConfig& model) {
  Llama3Shape shape = llama3_shape(model.flavor);
  if (model.num_layers > 0) {
    shape.num_layers = model.num_layers;
  }
  return shape;
}

std::unique_ptr<HostPool> make_staging(const Device& device) {
  if (device.torch_device().is_cpu()) {
    return nullptr;
  }
  HostPoolOptions options;
  options.slab_bytes = size_t{1} << 20;
  return std::make_unique<HostPool>(device.torch_device(), options);
}

std::shared_ptr<SwapContext> make_context(Device& device, std::shared_ptr<WaitMeter> waits) {
  if (device.torch_device().is_cpu()) {
    return nullptr;
  }
  SwapContextOptions options;
  options.order = std::move(waits);
  options.timing = true;
  options.host.budget_option =
      "--swap-layer-input.max-host-bytes for inputs, --optimizer.swap-optimizer for states";
  if (device.is_dry_run()) {
    options.host.read_limit = [] { return std::nullopt; };  // nothing is pinned in earnest
  }
  options.on_device_memory = [&device](const c10::Storage& storage, MemoryKind kind) {
    device.note_use(
        storage,
        kind == MemoryKind::kLayerInputs ? MemoryUse::kLayerInputs : MemoryUse::kOptimizerStates);
  };
  auto context = std::make_shared<SwapContext>(device.torch_device(), options);
  device.name_stream(context->copies().d2h_stream(), "swap out");
  device.name_stream(context->copies().h2d_stream(), "swap in");
  return context;
}

std::vector<AdamGroup> optimizer_groups(const OptimizerConfig& config,
                                        const std::vector<NamedParameter>& parameters) {
  AdamGroup group;
  for (const NamedParameter& parameter : parameters) {
    group.params.push_back(parameter.tensor);
  }
  group.settings.lr = config.lr;
  group.settings.beta1 = config.beta1;
  group.settings.beta2 = config.beta2;
  group.settings.eps = config.eps;
  group.settings.weight_decay = config.weight_decay;
  group.settings.decoupled = config.name == "AdamW";
  return {group};
}

AdamOptions optimizer_options(const OptimizerConfig& config, const Device& device) {
  AdamOptions options;
  options.placement = config.swap_optimizer ? StatePlacement::kSwap : StatePlacement::kDevice;
  options.swap_optimizer_times = config.swap_optimizer_times;
  options.swap_optimizer_arena_bytes = config.swap_optimizer_arena_bytes.value;
  options.link_bytes_per_s = device.link_bytes_per_s();
  options.copy_latency_s = device.copy_latency_s();
  return options;
}

}  // namespace

Trainer::Trainer(const Config& config, Device& device)
    : config_(config),
      device_(device),
      shape_(shape_of(config.model)),
      dtype_(config.training.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat),
      data_(read_texts(config.data.path), config.training.seq_len),
      staging_(make_staging(device)),
      batches_(data_, device, staging_.get(), config.training.local_batch_size),
      waits_(std::make_shared<WaitMeter>(device)),
      context_(make_context(device, waits_)),
      parameters_(device, dtype_, config.debug.seed),
      model_(shape_, config.training.seq_len, parameters_),
      layers_(config, shape_.num_layers, context_),
      optimizer_(context_,
                 optimizer_groups(config.optimizer, parameters_.parameters()),
                 optimizer_options(config.optimizer, device)),
      schedule_(config.lr_scheduler, config.lr_total_steps()) {}

RunSummary Trainer::run() {
  const RateBasis basis = rate_basis();
  const int64_t num_steps = config_.training.steps;
  ProgressBar bar(config_.metrics.progress_bar, num_steps);
  StepLog log(device_, config_.metrics.log_freq, [&](const std::vector<StepRecord>& steps) {
    bar.clear();
    std::printf("%s\n", log_line(steps, basis).c_str());
    std::fflush(stdout);
  });
  for (int64_t step = 1; step <= num_steps; ++step) {
    StepMarks marks;
    marks.step = step;
    take_step(step, marks);
    if (step == 1) {
      pinned_allocations_in_first_step_ = num_pinned_allocations();
    }
    log.add(std::move(marks));
    bar.draw(step);
  }
  log.finish();
  return summarize(log);
}

void Trainer::take_step(int64_t step, StepMarks& marks) {
  device_.reset_peak_memory();
  marks.begin = device_.mark();
  optimizer_.zero_grad();
  const at::Tensor loss = forward_backward();

  marks.optimizer_begin = device_.mark();
  optimizer_.prefetch();
  const at::Tensor grad_norm = clip_grad_norm(gradients(), config_.training.max_norm);
  optimizer_.settings(0).lr = config_.optimizer.lr * schedule_.factor(step - 1);
  optimizer_.step();

  marks.end = device_.mark();
  marks.loss_and_grad_norm = ScalarCopy({loss, grad_norm}, staging_.get());
  marks.exposed = waits_->take();
  marks.memory = device_.memory();
}

// The mean loss over the micro-batches, a scalar on the device.
at::Tensor Trainer::forward_backward() {
  const int64_t num_microbatches = config_.num_microbatches();
  at::Tensor total;
  for (int64_t microbatch = 0; microbatch < num_microbatches; ++microbatch) {
    const Batch batch = batches_.next();
    at::Tensor loss =
        model_.loss(layers_.run(model_.layers(), model_.embed(batch.tokens)), batch.targets);
    if (num_microbatches > 1) {
      loss = at::div(loss, static_cast<double>(num_microbatches));
    }
    loss.backward();
    state_bytes_outside_step_ =
        std::max(state_bytes_outside_step_, optimizer_.device_state_bytes());
    total = total.defined() ? at::add(total, loss.detach()) : loss.detach();
  }
  return total;
}

std::vector<at::Tensor> Trainer::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const NamedParameter& parameter : parameters_.parameters()) {
    gradients.push_back(parameter.tensor.grad());
  }
  return gradients;
}

RateBasis Trainer::rate_basis() const {
  RateBasis basis;
  const int64_t seq_len = config_.training.seq_len;
  basis.tokens_per_step = config_.training.local_batch_size * config_.num_microbatches() * seq_len;
  basis.flops_per_token = shape_.flops_per_token(seq_len);
  basis.peak_flops = device_.peak_flops(dtype_);
  basis.capacity_bytes = device_.memory().capacity_bytes;
  return basis;
}

int64_t Trainer::num_pinned_allocations() const {
  return context_ == nullptr
             ? 0
             : static_cast<int64_t>(context_->host().stats().num_pinned_allocations);
}

OptimizerSummary Trainer::summarize_optimizer(const StepLog& log) {
  const AdamStats stats = optimizer_.stats();
  OptimizerSummary summary;
  summary.swap = config_.optimizer.swap_optimizer;
  summary.num_chunks = stats.num_chunks;
  summary.num_slots = stats.num_slots;
  summary.arena_bytes = stats.arena_bytes;
  summary.state_bytes = stats.state_bytes;
  summary.state_bytes_on_device_outside_step = state_bytes_outside_step_;
  const std::vector<OptimizerStepTimes> times = optimizer_.take_step_times();
  const auto median_of = [&](double OptimizerStepTimes::* member) {
    std::vector<double> values;
    for (const OptimizerStepTimes& step : times) {
      values.push_back(step.*member);
    }
    return median(values);
  };
  if (!times.empty()) {
    summary.h2d_ms = median_of(&OptimizerStepTimes::h2d_ms);
    summary.d2h_ms = median_of(&OptimizerStepTimes::d2h_ms);
    summary.update_ms = median_of(&OptimizerStepTimes::update_ms);
    summary.step_ms = median_of(&OptimizerStepTimes::step_ms);
    summary.exposed_ms = median_of(&OptimizerStepTimes::exposed_ms);
    return summary;
  }
  // Resident states: the step is the update.
  std::vector<double> values;
  for (const StepRecord& step : log.records()) {
    values.push_back(step.optimizer_ms);
  }
  summary.step_ms = summary.update_ms = median(values);
  return summary;
}

RunSummary Trainer::summarize(const StepLog& log) {
  RunSummary summary;
  summary.device_type = device_.type();
  summary.device_preset = device_.preset();
  summary.capacity_bytes = device_.memory().capacity_bytes;
  summary.model_name = config_.model.name;
  summary.model_flavor = config_.model.flavor;
  summary.num_parameters = shape_.num_parameters();
  summary.num_layers = shape_.num_layers;
  summary.steps = log.records();
  summary.peak_allocated_bytes = log.highest_memory().peak_allocated_bytes;
  for (const StepRecord& step : log.records()) {
    summary.peak_reserved_bytes = std::max(summary.peak_reserved_bytes, step.peak_reserved_bytes);
  }
  summary.peak_bytes_by_use = log.highest_memory().peak_bytes_by_use;
  if (context_ != nullptr) {
    const HostPoolStats host = context_->host().stats();
    summary.host = {host.peak_requested_bytes,
                    host.pinned_bytes,
                    host.peak_pinned_bytes,
                    num_pinned_allocations() - pinned_allocations_in_first_step_};
  }
  const auto num_steps = static_cast<int64_t>(log.records().size());
  summary.layer_input = layers_.summary(num_steps);
  summary.layer_input.exposed_ms_per_step =
      log.layer_input_exposed_ms() / static_cast<double>(num_steps);
  summary.optimizer = summarize_optimizer(log);
  summary.races = device_.num_races();
  return summary;
}

}  // namespace swapline::trainer
