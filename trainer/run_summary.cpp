// One account from many devices.
#include "trainer/run_summary.h"

#include <algorithm>
#include <vector>

namespace swapline::trainer {
namespace {

// Resident states: the step is the update.
double median_optimizer_ms(const StepLog& log) {
  std::vector<double> values;
  for (const StepRecord& step : log.records()) {
    values.push_back(step.optimizer_ms);
  }
  return median(values);
}

OptimizerSummary summarize_optimizers(const Ranks& ranks, const StepLog& log) {
  OptimizerSummary summary;
  bool has_times = false;
  for (const auto& rank : ranks) {
    const OptimizerStats stats = rank->optimizer->stats();
    summary.num_chunks += stats.num_chunks;
    summary.num_slots = std::max(summary.num_slots, stats.num_slots);
    summary.arena_bytes = std::max(summary.arena_bytes, stats.arena_bytes);
    summary.scratch_bytes = std::max(summary.scratch_bytes, stats.scratch_bytes);
    summary.kept_bytes += stats.kept_bytes;
    summary.mapped_bytes += stats.mapped_bytes;
    summary.state_bytes += stats.state_bytes;
    const std::vector<OptimizerStepTimes> times = rank->optimizer->take_step_times();
    const auto take_median = [&](double OptimizerStepTimes::* of_step, double* of_run) {
      std::vector<double> values;
      for (const OptimizerStepTimes& step : times) {
        values.push_back(step.*of_step);
      }
      *of_run = std::max(*of_run, median(values));
    };
    has_times = has_times || !times.empty();
    take_median(&OptimizerStepTimes::h2d_ms, &summary.h2d_ms);
    take_median(&OptimizerStepTimes::d2h_ms, &summary.d2h_ms);
    take_median(&OptimizerStepTimes::update_ms, &summary.update_ms);
    take_median(&OptimizerStepTimes::step_ms, &summary.step_ms);
    take_median(&OptimizerStepTimes::exposed_ms, &summary.exposed_ms);
  }
  if (!has_times) {
    summary.step_ms = summary.update_ms = median_optimizer_ms(log);
  }
  return summary;
}

HostSummary summarize_host(const Ranks& ranks) {
  HostSummary summary;
  for (const auto& rank : ranks) {
    if (rank->context != nullptr) {
      const HostPoolStats host = rank->context->host().stats();
      summary.requested_bytes += host.peak_requested_bytes;
      summary.pinned_bytes += host.pinned_bytes;
      summary.peak_pinned_bytes += host.peak_pinned_bytes;
    }
  }
  return summary;
}

}  // namespace

LayerInputSummary summarize_layer_inputs(const Ranks& ranks, int64_t num_steps) {
  LayerInputSummary total;
  for (const auto& rank : ranks) {
    const LayerInputSummary one = rank->layers.summary(num_steps);
    total.enabled = total.enabled || one.enabled;
    total.swapped_bytes_per_step += one.swapped_bytes_per_step;
    total.peak_resident_inputs = std::max(total.peak_resident_inputs, one.peak_resident_inputs);
    total.prefetch_hits += one.prefetch_hits;
    total.prefetch_misses += one.prefetch_misses;
    total.kept_on_device += one.kept_on_device;
  }
  return total;
}

RunSummary summarize(const Devices& devices, const Ranks& ranks, const StepLog& log) {
  RunSummary summary;
  summary.device_type = devices.front()->type();
  summary.device_preset = devices.front()->preset();
  summary.num_devices = static_cast<int64_t>(devices.size());
  summary.capacity_bytes = devices.front()->memory().capacity_bytes;
  summary.steps = log.records();
  summary.peak_allocated_bytes = log.highest_memory().peak_allocated_bytes;
  for (const StepRecord& step : log.records()) {
    summary.peak_reserved_bytes = std::max(summary.peak_reserved_bytes, step.peak_reserved_bytes);
  }
  summary.peak_bytes_by_use = log.highest_memory().peak_bytes_by_use;
  summary.host = summarize_host(ranks);
  const auto num_steps = static_cast<int64_t>(log.records().size());
  summary.layer_input = summarize_layer_inputs(ranks, num_steps);
  summary.layer_input.exposed_ms_per_step = log.layer_input_exposed_ms();
  summary.optimizer = summarize_optimizers(ranks, log);
  summary.races = devices.front()->num_races();
  return summary;
}

}  // namespace swapline::trainer
