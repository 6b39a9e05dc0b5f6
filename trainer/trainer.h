// The parts of a training run and its loop.
#pragma once

#include "swapline/optimizer/adam.h"
#include "swapline/swap/swap_context.h"
#include "trainer/batch_loader.h"
#include "trainer/config.h"
#include "trainer/console.h"
#include "trainer/device.h"
#include "trainer/layer_runner.h"
#include "trainer/llama3.h"
#include "trainer/lr_schedule.h"
#include "trainer/parameters.h"
#include "trainer/step_log.h"
#include "trainer/summary.h"
#include "trainer/text_data.h"
#include "trainer/wait_meter.h"

#include <memory>
#include <vector>

namespace swapline::trainer {

class Trainer {
 public:
  // `device` must outlive the trainer.
  // Throws: std::runtime_error for data that cannot be used, c10::Error, HostMemoryError.
  Trainer(const Config& config, Device& device);

  // Takes all steps, with a line of log for each log_freq of them.
  RunSummary run();

  RateBasis rate_basis() const;
  const Llama3Shape& shape() const { return shape_; }
  int64_t text_bytes() const { return data_.size(); }

 private:
  void take_step(int64_t step, StepMarks& marks);
  at::Tensor forward_backward();
  std::vector<at::Tensor> gradients() const;
  RunSummary summarize(const StepLog& log);
  OptimizerSummary summarize_optimizer(const StepLog& log);
  int64_t num_pinned_allocations() const;

  Config config_;
  Device& device_;
  Llama3Shape shape_;
  c10::ScalarType dtype_;
  TextData data_;
  std::unique_ptr<HostPool> staging_;  // small pinned buffers; nullptr on the CPU
  BatchLoader batches_;
  std::shared_ptr<WaitMeter> waits_;
  std::shared_ptr<SwapContext> context_;  // nullptr on the CPU
  ParameterFactory parameters_;
  Llama3 model_;
  LayerRunner layers_;
  Adam optimizer_;
  LrSchedule schedule_;
  int64_t pinned_allocations_in_first_step_ = 0;
  size_t state_bytes_outside_step_ = 0;  // most optimizer state on the device after backward
};

}  // namespace swapline::trainer
