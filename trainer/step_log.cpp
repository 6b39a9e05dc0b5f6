// Reading steps that are done.
#include "trainer/step_log.h"

#include <utility>

namespace swapline::trainer {

StepLog::StepLog(const Device& device,
                 int64_t log_freq,
                 std::function<void(const std::vector<StepRecord>&)> on_steps)
    : device_(device), log_freq_(log_freq), on_steps_(std::move(on_steps)) {}

void StepLog::add(StepMarks marks) {
  finish();
  pending_ = std::move(marks);
}

void StepLog::finish() {
  if (pending_) {
    read(*std::exchange(pending_, std::nullopt));
  }
}

double StepLog::total_ms(const std::vector<std::pair<TimeMark, TimeMark>>& spans) const {
  double total = 0;
  for (const auto& [begin, end] : spans) {
    total += device_.elapsed_ms(begin, end);
  }
  return total;
}

void StepLog::read(StepMarks marks) {
  StepRecord record;
  record.step = marks.step;
  if (!device_.is_dry_run()) {
    const std::vector<double> scalars = marks.loss_and_grad_norm.read();
    record.loss = scalars[0];
    record.grad_norm = scalars[1];
  }
  record.step_ms = device_.elapsed_ms(marks.begin, marks.end);
  record.optimizer_ms = device_.elapsed_ms(marks.optimizer_begin, marks.end);
  const double layer_input_ms = total_ms(marks.exposed.layer_inputs);
  const double optimizer_ms = total_ms(marks.exposed.optimizer);
  layer_input_exposed_ms_ += layer_input_ms;
  optimizer_exposed_ms_ += optimizer_ms;
  record.exposed_ms = layer_input_ms + optimizer_ms;
  record.peak_allocated_bytes = marks.memory.peak_allocated_bytes;
  record.peak_reserved_bytes = marks.memory.peak_reserved_bytes;
  if (marks.memory.peak_allocated_bytes > highest_memory_.peak_allocated_bytes) {
    highest_memory_ = marks.memory;
  }
  records_.push_back(record);
  unlogged_.push_back(record);
  if (record.step == 1 || record.step % log_freq_ == 0) {
    on_steps_(std::exchange(unlogged_, {}));
  }
}

}  // namespace swapline::trainer
