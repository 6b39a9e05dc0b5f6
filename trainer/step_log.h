// From what is enqueued for a step to its record. A step is read one step late, when the device has
// long gone past it: so the host never waits for the device, and the device never for the host.
#pragma once

#include "trainer/device.h"
#include "trainer/scalar_copy.h"
#include "trainer/summary.h"
#include "trainer/wait_meter.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace swapline::trainer {

// One step, enqueued but perhaps not done.
struct StepMarks {
  int64_t step = 0;
  TimeMark begin;
  TimeMark optimizer_begin;
  TimeMark end;
  ScalarCopy loss_and_grad_norm;
  ExposedSpans exposed;
  MemoryReport memory;
};

class StepLog {
 public:
  // `on_steps` gets the records since its last call, each `log_freq` steps and after the first.
  StepLog(const Device& device,
          int64_t log_freq,
          std::function<void(const std::vector<StepRecord>&)> on_steps);

  // Takes in a step, and reads the one before it.
  void add(StepMarks marks);
  // Reads the last step. Blocks the host until it is done.
  void finish();

  const std::vector<StepRecord>& records() const { return records_; }
  double layer_input_exposed_ms() const { return layer_input_exposed_ms_; }
  double optimizer_exposed_ms() const { return optimizer_exposed_ms_; }
  // The report of the step with the highest peak.
  const MemoryReport& highest_memory() const { return highest_memory_; }

 private:
  void read(StepMarks marks);
  double total_ms(const std::vector<std::pair<TimeMark, TimeMark>>& spans) const;

  const Device& device_;
  int64_t log_freq_;
  std::function<void(const std::vector<StepRecord>&)> on_steps_;
  std::optional<StepMarks> pending_;
  std::vector<StepRecord> records_;
  std::vector<StepRecord> unlogged_;
  double layer_input_exposed_ms_ = 0;
  double optimizer_exposed_ms_ = 0;
  MemoryReport highest_memory_;
};

}  // namespace swapline::trainer
