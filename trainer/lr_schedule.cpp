// Warm-up, stable, decay: the same formula as torchtitan's, so that runs compare step by step.
#include "trainer/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace swapline::trainer {

LrSchedule::LrSchedule(const LrSchedulerConfig& config, int64_t total_steps) : config_(config) {
  warmup_steps_ = std::min(config.warmup_steps, total_steps);
  const int64_t most_decay_steps = total_steps - warmup_steps_;
  decay_steps_ = most_decay_steps;
  if (config.decay_ratio) {
    const double wanted = std::nearbyint(static_cast<double>(total_steps) * *config.decay_ratio);
    decay_steps_ = std::min(static_cast<int64_t>(wanted), most_decay_steps);
  }
  // One step more than what is left: so the last step's rate is not yet the end of the decay.
  stable_steps_ = total_steps + 1 - warmup_steps_ - decay_steps_;
}

double LrSchedule::factor(int64_t step) const {
  if (step < warmup_steps_) {
    return static_cast<double>(step + 1) / static_cast<double>(warmup_steps_);
  }
  const int64_t decay_start = warmup_steps_ + stable_steps_;
  if (step < decay_start) {
    return 1.0;
  }
  // A run longer than its schedule stays at the end of the decay.
  const double progress = decay_steps_ == 0 ? 1.0
                                            : std::min(1.0,
                                                       static_cast<double>(step + 1 - decay_start) /
                                                           static_cast<double>(decay_steps_));
  double shape = 1.0 - progress;
  if (config_.decay_type == "sqrt") {
    shape = 1.0 - std::sqrt(progress);
  } else if (config_.decay_type == "cosine") {
    shape = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return config_.min_lr_factor + (1.0 - config_.min_lr_factor) * shape;
}

}  // namespace swapline::trainer
