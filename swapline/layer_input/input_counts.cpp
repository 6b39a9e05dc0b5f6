// Each handle carries what it is counted as, so that nothing is counted twice.
#include "swapline/layer_input/input_counts.h"

#include <algorithm>

namespace swapline {

void InputCounts::reset() {
  const int64_t resident = stats.resident_inputs;
  stats = {};
  stats.resident_inputs = resident;
}

void InputCounts::set_resident(InputHandle& handle, bool is_resident) {
  if (handle.is_resident == is_resident) {
    return;
  }
  handle.is_resident = is_resident;
  const int64_t change = is_resident ? 1 : -1;
  stats.resident_inputs += change;
  num_running_resident_ += handle.is_running ? change : 0;
}

void InputCounts::set_running(InputHandle& handle, bool is_running) {
  if (handle.is_running == is_running) {
    return;
  }
  handle.is_running = is_running;
  num_running_resident_ += !handle.is_resident ? 0 : is_running ? 1 : -1;
}

void InputCounts::note_peak(const InputHandle& running) {
  const bool is_one_more = running.is_resident && !running.is_running;
  const int64_t num_running = num_running_resident_ + (is_one_more ? 1 : 0);
  stats.peak_resident_inputs =
      std::max(stats.peak_resident_inputs, stats.resident_inputs - num_running);
}

}  // namespace swapline
