// The loss on other data while training goes on: forwards only, through the same stages. Training
// does not notice: neither bits nor the place in its data nor the load balance change.
#pragma once

#include "trainer/batch_loader.h"
#include "trainer/config.h"
#include "trainer/device.h"
#include "trainer/parallel/layout.h"
#include "trainer/pipeline/pipeline.h"
#include "trainer/pipeline/stage_runner.h"
#include "trainer/summary.h"
#include "trainer/text_data.h"

#include <cstdint>
#include <memory>
#include <string>

namespace swapline::trainer {

// The texts at validator.dataset-path. Where none is named, the last tenth of those that are
// trained on: training comes there last.
// Throws: std::runtime_error naming --validator.dataset-path.
std::string validation_texts(const Config& config);

class Validator {
 public:
  // `training`: what the training's stages are run with. All must outlive the validator.
  // Throws: std::runtime_error when `texts` are too short, naming --validator.dataset-path.
  Validator(const Config& config,
            const Layout& layout,
            const Devices& devices,
            StageParts training,
            std::string texts);

  // After this step there is a validation.
  bool is_due(int64_t step) const { return step % freq_ == 0; }
  // The mean loss over the same batches each time, with the weights as they are. Blocks the host
  // until it is there.
  ValidationRecord run(int64_t step);

 private:
  const Devices& devices_;
  int64_t freq_;
  TextData data_;
  StepBatches batches_;
  int64_t num_batches_;
  HostPool* staging_;
  std::unique_ptr<StageRunner> stages_;
  Pipeline pipeline_;
};

}  // namespace swapline::trainer
