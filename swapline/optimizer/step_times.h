// What the parts of each step took on the device.
#pragma once

#include "swapline/copy/timed_span.h"
#include "swapline/export.h"

#include <cstddef>
#include <deque>
#include <vector>

namespace swapline {

// One step of a swapped optimizer, in ms of device time.
struct OptimizerStepTimes {
  double h2d_ms = 0;      // sum over the copies in
  double d2h_ms = 0;      // sum over the copies out
  double update_ms = 0;   // sum over the updates
  double step_ms = 0;     // from the start of the first copy in to the end of the last copy out
  double exposed_ms = 0;  // time that compute stood still for copies in
};

namespace detail {

// Collects spans step by step. Does nothing unless enabled.
class StepTimer {
 public:
  struct Spans {
    TimedSpans h2d;
    TimedSpans d2h;
    TimedSpans update;
    TimedSpans step;
    TimedSpans exposed;
  };

  explicit StepTimer(bool is_enabled) : is_enabled_(is_enabled) {}

  // The spans of the running step, begun if there is none; nullptr when timing is off.
  Spans* running();
  void begin_step(const c10::Stream& stream);
  void end_step(const c10::Stream& stream);
  // Forgets the running step: it did not come to its end.
  void abandon() { is_running_ = false; }

  // The steps ended since the last call, oldest first (the last 1000). Blocks the host until they
  // are done on the device.
  std::vector<OptimizerStepTimes> take();

 private:
  static constexpr size_t kMostSteps = 1000;

  bool is_enabled_;
  bool is_running_ = false;
  Spans spans_;
  std::deque<Spans> ended_;
};

}  // namespace detail
}  // namespace swapline
