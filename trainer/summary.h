// What a run was and what it needed: the content of summary.json.
#pragma once

#include "trainer/device.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace swapline::trainer {

struct StepRecord {
  int64_t step = 0;            // from 1
  std::optional<double> loss;  // none in a dry run
  std::optional<double> grad_norm;
  double step_ms = 0;
  double optimizer_ms = 0;
  double exposed_ms = 0;  // compute stood still for a copy, layer inputs and optimizer together
  size_t peak_allocated_bytes = 0;
  size_t peak_reserved_bytes = 0;
};

struct ValidationRecord {
  int64_t step = 0;            // steps taken before it
  std::optional<double> loss;  // none in a dry run
  double ms = 0;
  int64_t num_batches = 0;
  size_t peak_reserved_bytes = 0;
};

struct LayerInputSummary {
  bool enabled = false;
  int64_t swapped_bytes_per_step = 0;
  double exposed_ms_per_step = 0;
  int64_t peak_resident_inputs = 0;  // beyond the running layer's own
  int64_t prefetch_hits = 0;
  int64_t prefetch_misses = 0;
  int64_t prefetch_misses_after_first_step = 0;
  int64_t kept_on_device = 0;
};

// Times: per step, the median.
struct OptimizerSummary {
  bool swap = false;
  int64_t num_chunks = 0;
  int64_t num_slots = 0;
  size_t arena_bytes = 0;
  size_t scratch_bytes = 0;  // beside the arena, in the step only
  size_t kept_bytes = 0;     // of states, by swap-optimizer-fraction
  size_t mapped_bytes = 0;   // of states, addressed in host memory by the update
  size_t state_bytes = 0;
  size_t state_bytes_on_device_outside_step = 0;
  double h2d_ms = 0;
  double d2h_ms = 0;
  double update_ms = 0;
  double step_ms = 0;
  double exposed_ms = 0;
};

struct HostSummary {
  size_t requested_bytes = 0;
  size_t pinned_bytes = 0;
  size_t peak_pinned_bytes = 0;
  int64_t pinned_allocations_after_first_step = 0;
};

struct RunSummary {
  std::string device_type;
  std::string device_preset;
  int64_t num_devices = 1;
  size_t capacity_bytes = 0;
  std::string model_name;
  std::string model_flavor;
  int64_t num_parameters = 0;
  int64_t num_layers = 0;
  std::vector<StepRecord> steps;
  std::vector<ValidationRecord> validation;
  size_t peak_allocated_bytes = 0;
  size_t peak_reserved_bytes = 0;
  BytesByUse peak_bytes_by_use{};  // at the moment of the highest peak
  HostSummary host;
  LayerInputSummary layer_input;
  OptimizerSummary optimizer;
  int64_t races = 0;
};

// The middle one, or the mean of the two in the middle; 0 when there is none.
double median(std::vector<double> values);

std::string summary_json(const RunSummary& summary);

// Writes the text into folder/name, making the folder first.
// Throws: std::runtime_error naming --job.dump-folder.
void write_output(const std::string& folder, const std::string& name, const std::string& text);

}  // namespace swapline::trainer
