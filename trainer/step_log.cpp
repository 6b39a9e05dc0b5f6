// Reading steps that are done.
#include "trainer/step_log.h"

#include <algorithm>
#include <utility>

namespace swapline::trainer {
namespace {

double total_ms(const Device& device, const std::vector<std::pair<TimeMark, TimeMark>>& spans) {
  double total = 0;
  for (const auto& [begin, end] : spans) {
    total += device.elapsed_ms(begin, end);
  }
  return total;
}

}  // namespace

StepLog::StepLog(const Devices& devices,
                 int64_t log_freq,
                 std::function<void(const std::vector<StepRecord>&)> on_steps)
    : devices_(devices), log_freq_(log_freq), on_steps_(std::move(on_steps)) {}

void StepLog::add(StepMarks marks) {
  finish();
  pending_ = std::move(marks);
}

void StepLog::note_memory(const MemoryReport& memory) {
  if (memory.peak_allocated_bytes > highest_memory_.peak_allocated_bytes) {
    highest_memory_ = memory;
  }
}

void StepLog::finish() {
  if (pending_) {
    read(*std::exchange(pending_, std::nullopt));
  }
}

void StepLog::read(StepMarks marks) {
  StepRecord record;
  record.step = marks.step;
  if (!devices_.front()->is_dry_run()) {
    const std::vector<double> scalars = marks.loss_and_grad_norm.read();
    record.loss = scalars[0];
    record.grad_norm = scalars[1];
  }
  // Of the slowest device, the one that waits most, the one that holds most.
  double most_for_layer_inputs = 0;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const Device& device = *devices_[i];
    const StepMarks::OfDevice& of_device = marks.devices[i];
    const auto raise = [](auto& most, auto value) { most = std::max(most, value); };
    raise(record.step_ms, device.elapsed_ms(of_device.begin, of_device.end));
    raise(record.optimizer_ms, device.elapsed_ms(of_device.optimizer_begin, of_device.end));
    const double for_layer_inputs = total_ms(device, of_device.exposed.layer_inputs);
    raise(most_for_layer_inputs, for_layer_inputs);
    raise(record.exposed_ms, for_layer_inputs + total_ms(device, of_device.exposed.optimizer));
    const MemoryReport& memory = of_device.memory;
    raise(record.peak_reserved_bytes, memory.peak_reserved_bytes);
    raise(record.peak_allocated_bytes, memory.peak_allocated_bytes);
    note_memory(memory);
  }
  layer_input_exposed_ms_.push_back(most_for_layer_inputs);
  records_.push_back(record);
  unlogged_.push_back(record);
  if (records_.size() == 1 || record.step % log_freq_ == 0) {
    on_steps_(std::exchange(unlogged_, {}));
  }
}

}  // namespace swapline::trainer
