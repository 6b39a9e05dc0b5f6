// The parts of a training run and its loop.
#pragma once

#include "trainer/batch_loader.h"
#include "trainer/checkpoints.h"
#include "trainer/clip.h"
#include "trainer/config.h"
#include "trainer/console.h"
#include "trainer/device.h"
#include "trainer/lr_schedule.h"
#include "trainer/models/model.h"
#include "trainer/parallel/layout.h"
#include "trainer/parallel/shared_gradients.h"
#include "trainer/pipeline/pipeline.h"
#include "trainer/pipeline/stage_runner.h"
#include "trainer/rank.h"
#include "trainer/step_log.h"
#include "trainer/summary.h"
#include "trainer/text_data.h"
#include "trainer/validator.h"

#include <memory>
#include <vector>

namespace swapline::trainer {

class Trainer {
 public:
  // `layout`: of `config`. `devices`: as many as it has; must outlive the trainer.
  // `checkpoint_ops`: how checkpoints are written; nullptr: as the system does.
  // Throws: std::runtime_error for data that cannot be used, c10::Error, HostMemoryError.
  Trainer(const Config& config,
          Layout layout,
          const Devices& devices,
          std::shared_ptr<FileOps> checkpoint_ops = nullptr);

  // Takes all steps, with a line of log for each log_freq of them; from a checkpoint on, those that
  // are left. No steps in what is returned: none was left.
  RunSummary run();

  RateBasis rate_basis() const;
  const ModelFigures& figures() const { return figures_; }
  int64_t text_bytes() const { return data_.size(); }

 private:
  void make_models();
  void make_optimizers();
  // Returns whether steps are left.
  bool go_on_from_checkpoint(StepLog& log);
  StepMarks take_step(int64_t step);
  void end_step(int64_t step, StepMarks& marks, ProgressBar& bar);
  std::vector<std::vector<at::Tensor>> gradients() const;
  int64_t num_pinned_allocations() const;

  Config config_;
  const Devices& devices_;
  Layout layout_;
  ModelFigures figures_;
  c10::ScalarType dtype_;
  TextData data_;
  StepBatches batches_;
  Ranks ranks_;
  std::vector<ParameterFactory> parameters_;  // one for each lane, as the models
  std::vector<std::unique_ptr<Model>> models_;
  std::vector<GradientPlace> counted_gradients_;
  std::unique_ptr<SharedGradients> shared_;
  std::unique_ptr<StageRunner> stages_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<Validator> validator_;  // nullptr: none is wanted
  LrSchedule schedule_;
  TrainState state_;
  std::unique_ptr<Checkpoints> checkpoints_;  // nullptr: none are wanted
  int64_t pinned_allocations_in_first_step_ = 0;
  size_t state_bytes_outside_step_ = 0;  // most optimizer state on a device after backward
};

}  // namespace swapline::trainer
