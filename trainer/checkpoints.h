// A run's checkpoints: goes on from one, saves others, while training goes on if that is wanted.
#pragma once

#include "swapline/checkpoint/background_writer.h"
#include "trainer/checkpoint_policy.h"
#include "trainer/checkpoint_tensors.h"
#include "trainer/config.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace swapline::trainer {

// Where a run is, besides its tensors.
struct TrainState {
  int64_t step = 0;           // steps taken
  int64_t num_tokens = 0;     // seen in them
  int64_t schedule_step = 0;  // steps of the learning rate's schedule
  int64_t data_position = 0;  // TextData::position()
  int64_t data_bytes = 0;     // TextData::size()
};

class Checkpoints {
 public:
  // `tensors`: their optimizers must outlive it. `ops`: nullptr: the system's.
  Checkpoints(const Config& config,
              std::vector<SavedTensor> tensors,
              std::shared_ptr<FileOps> ops = nullptr);

  // Reads what there is to go on from into the tensors, and `state` as far as it is to be taken.
  // Returns the checkpoint's path; "": there is none, nothing is changed.
  // Throws: UsageError, std::runtime_error, c10::Error, naming files; the run cannot start then.
  std::string load(TrainState& state);

  // After each step, before anything of the next one. Saves if it is time for it; returns the
  // checkpoint's path then, else "". The next step's optimizer steps must come after wait().
  // Throws: c10::Error, also of a save before.
  std::string save_if_due(const TrainState& state);

  // Blocks the host until nothing is being written. Throws: c10::Error.
  void wait() { writer_.wait(); }

 private:
  CheckpointContent content(const TrainState& state, SaveKind kind) const;
  Scalars param_groups() const;

  Config config_;
  std::vector<SavedTensor> tensors_;
  BackgroundWriter writer_;
};

}  // namespace swapline::trainer
