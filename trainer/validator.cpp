// A batch of validation is as large as one of training, and is spread in the same way.
#include "trainer/validator.h"

#include "trainer/rank.h"
#include "trainer/scalar_copy.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <c10/core/GradMode.h>

namespace swapline::trainer {
namespace {

constexpr const char* kPathOption = "--validator.dataset-path";

std::unique_ptr<StageRunner> stages_on(StageParts training, StepBatches& batches) {
  training.batches = &batches;
  return make_evaluation_stages(std::move(training));
}

int64_t num_batches_in(const TextData& data, const Config& config) {
  const int64_t tokens = config.sequences_per_step() * config.training.seq_len;
  return config.validator.steps < 0 ? std::max<int64_t>(1, (data.size() - 1) / tokens)
                                    : config.validator.steps;
}

}  // namespace

std::string validation_texts(const Config& config) {
  if (!config.validator.dataset_path.empty()) {
    return read_texts(config.validator.dataset_path, kPathOption);
  }
  const std::string trained_on = read_texts(config.data.path);
  return trained_on.substr(trained_on.size() - trained_on.size() / 10);
}

Validator::Validator(const Config& config,
                     const Layout& layout,
                     const Devices& devices,
                     StageParts training,
                     std::string texts)
    : devices_(devices),
      freq_(config.validator.freq),
      data_(std::move(texts), config.training.seq_len, kPathOption),
      batches_(data_, layout.num_microbatches, layout.num_lanes, layout.microbatch_size),
      num_batches_(num_batches_in(data_, config)),
      staging_(training.ranks->front()->staging.get()),
      stages_(stages_on(std::move(training), batches_)),
      pipeline_(forwards_of(layout.schedule),
                *stages_,
                {layout.microbatch_size, config.training.seq_len, model_figures(config).dim},
                config.training.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat) {}

ValidationRecord Validator::run(int64_t step) {
  const c10::NoGradGuard no_grad;
  ValidationRecord record;
  record.step = step;
  record.num_batches = num_batches_;
  std::vector<TimeMark> begins;
  for (const auto& device : devices_) {
    device->reset_peak_memory();
    begins.push_back(device->mark());
  }
  data_.seek(0);
  at::Tensor sum;
  for (int64_t batch = 0; batch < num_batches_; ++batch) {
    batches_.advance();
    pipeline_.run([](size_t) {});
    const at::Tensor loss = stages_->take_loss(devices_.front()->torch_device());
    sum = sum.defined() ? at::add(sum, loss) : loss;
  }
  ScalarCopy mean({at::div(sum, static_cast<double>(num_batches_))}, staging_);
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Device& device = *devices_[i];
    record.ms = std::max(record.ms, device.elapsed_ms(begins[i], device.mark()));
    record.peak_reserved_bytes =
        std::max(record.peak_reserved_bytes, device.memory().peak_reserved_bytes);
  }
  if (!devices_.front()->is_dry_run()) {
    record.loss = mean.read().front();
  }
  return record;
}

}  // namespace swapline::trainer
