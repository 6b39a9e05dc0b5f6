// Bookkeeping of timed spans per step.
#include "swapline/optimizer/step_times.h"

#include <utility>

namespace swapline::detail {

StepTimer::Spans* StepTimer::running() {
  return is_enabled_ && is_running_ ? &spans_ : nullptr;
}

void StepTimer::begin_step(const c10::Stream& stream) {
  if (!is_enabled_ || is_running_) {
    return;
  }
  spans_ = Spans();
  is_running_ = true;
  spans_.step.begin(stream);
}

void StepTimer::end_step(const c10::Stream& stream) {
  if (!is_enabled_ || !is_running_) {
    return;
  }
  spans_.step.end(stream);
  is_running_ = false;
  ended_.push_back(std::move(spans_));
  if (ended_.size() > kMostSteps) {
    ended_.pop_front();
  }
}

std::vector<OptimizerStepTimes> StepTimer::take() {
  std::vector<OptimizerStepTimes> times;
  for (auto& spans : ended_) {
    times.push_back({spans.h2d.total_ms(),
                     spans.d2h.total_ms(),
                     spans.update.total_ms(),
                     spans.step.total_ms(),
                     spans.exposed.total_ms()});
  }
  ended_.clear();
  return times;
}

}  // namespace swapline::detail
