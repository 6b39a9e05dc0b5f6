// The learning rate over a run: linear warm-up, a stable stretch, decay.
#pragma once

#include "trainer/config.h"

#include <cstdint>

namespace swapline::trainer {

class LrSchedule {
 public:
  // `total_steps` >= 1. A warm-up or decay that does not fit is cut to what does.
  LrSchedule(const LrSchedulerConfig& config, int64_t total_steps);

  // Factor on the peak learning rate at `step`, counted from 0.
  double factor(int64_t step) const;

 private:
  LrSchedulerConfig config_;
  int64_t warmup_steps_;
  int64_t stable_steps_;
  int64_t decay_steps_;
};

}  // namespace swapline::trainer
