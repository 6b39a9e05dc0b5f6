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
  struct OfDevice {
    TimeMark begin;
    TimeMark optimizer_begin;
    TimeMark end;
    ExposedSpans exposed;
    MemoryReport memory;
  };
  int64_t step = 0;
  std::vector<OfDevice> devices;
  ScalarCopy loss_and_grad_norm;
};

class StepLog {
 public:
  // `on_steps` gets the records since its last call, each `log_freq` steps and after the first one.
  // `devices` must outlive the log.
  StepLog(const Devices& devices,
          int64_t log_freq,
          std::function<void(const std::vector<StepRecord>&)> on_steps);

  // Takes in a step, and reads the one before it.
  void add(StepMarks marks);
  // Memory that was needed outside of steps.
  void note_memory(const MemoryReport& memory);
  // Reads the last step. Blocks the host until it is done.
  void finish();

  const std::vector<StepRecord>& records() const { return records_; }
  // Of a step, the median; of the device that has the most in each.
  double layer_input_exposed_ms() const { return median(layer_input_exposed_ms_); }
  // The report of the step and device with the highest peak.
  const MemoryReport& highest_memory() const { return highest_memory_; }

 private:
  void read(StepMarks marks);

  const Devices& devices_;
  int64_t log_freq_;
  std::function<void(const std::vector<StepRecord>&)> on_steps_;
  std::optional<StepMarks> pending_;
  std::vector<StepRecord> records_;
  std::vector<StepRecord> unlogged_;
  std::vector<double> layer_input_exposed_ms_;
  MemoryReport highest_memory_;
};

}  // namespace swapline::trainer
