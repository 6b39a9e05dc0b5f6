// summary.json: the field names are what scripts and tests read, so they are written out here once.
#include "trainer/summary.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace swapline::trainer {
namespace {

using Json = nlohmann::ordered_json;

Json number_or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json(nullptr);
}

Json step_json(const StepRecord& step) {
  return {{"step", step.step},
          {"loss", number_or_null(step.loss)},
          {"grad_norm", number_or_null(step.grad_norm)},
          {"step_ms", step.step_ms},
          {"optimizer_ms", step.optimizer_ms},
          {"exposed_ms", step.exposed_ms},
          {"peak_allocated_bytes", step.peak_allocated_bytes}};
}

Json by_kind_json(const BytesByUse& bytes) {
  const auto of = [&](MemoryUse use) { return bytes[static_cast<size_t>(use)]; };
  return {{"parameters", of(MemoryUse::kParameters)},
          {"gradients", of(MemoryUse::kGradients)},
          {"optimizer_states", of(MemoryUse::kOptimizerStates)},
          {"layer_inputs", of(MemoryUse::kLayerInputs)},
          {"other", of(MemoryUse::kOther)}};
}

Json layer_input_json(const LayerInputSummary& inputs) {
  return {{"enabled", inputs.enabled},
          {"swapped_bytes_per_step", inputs.swapped_bytes_per_step},
          {"exposed_ms_per_step", inputs.exposed_ms_per_step},
          {"peak_resident_inputs", inputs.peak_resident_inputs},
          {"prefetch_hits", inputs.prefetch_hits},
          {"prefetch_misses", inputs.prefetch_misses},
          {"prefetch_misses_after_first_step", inputs.prefetch_misses_after_first_step},
          {"kept_on_device", inputs.kept_on_device}};
}

Json optimizer_json(const OptimizerSummary& optimizer) {
  return {{"swap", optimizer.swap},
          {"num_chunks", optimizer.num_chunks},
          {"num_slots", optimizer.num_slots},
          {"arena_bytes", optimizer.arena_bytes},
          {"scratch_bytes", optimizer.scratch_bytes},
          {"kept_bytes", optimizer.kept_bytes},
          {"mapped_bytes", optimizer.mapped_bytes},
          {"state_bytes", optimizer.state_bytes},
          {"state_bytes_on_device_outside_step", optimizer.state_bytes_on_device_outside_step},
          {"h2d_ms", optimizer.h2d_ms},
          {"d2h_ms", optimizer.d2h_ms},
          {"update_ms", optimizer.update_ms},
          {"step_ms", optimizer.step_ms},
          {"exposed_ms", optimizer.exposed_ms}};
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string summary_json(const RunSummary& summary) {
  Json steps = Json::array();
  for (const StepRecord& step : summary.steps) {
    steps.push_back(step_json(step));
  }
  Json validation = Json::array();
  for (const ValidationRecord& record : summary.validation) {
    validation.push_back({{"step", record.step}, {"loss", number_or_null(record.loss)}});
  }
  const HostSummary& host = summary.host;
  const Json json = {
      {"device",
       {{"type", summary.device_type},
        {"preset", summary.device_preset},
        {"count", summary.num_devices},
        {"capacity_bytes", summary.capacity_bytes}}},
      {"model",
       {{"name", summary.model_name},
        {"flavor", summary.model_flavor},
        {"num_parameters", summary.num_parameters},
        {"num_layers", summary.num_layers}}},
      {"steps", steps},
      {"validation", validation},
      {"peak_allocated_bytes", summary.peak_allocated_bytes},
      {"peak_reserved_bytes", summary.peak_reserved_bytes},
      {"peak_bytes_by_kind", by_kind_json(summary.peak_bytes_by_use)},
      {"host",
       {{"requested_bytes", host.requested_bytes},
        {"pinned_bytes", host.pinned_bytes},
        {"peak_pinned_bytes", host.peak_pinned_bytes},
        {"pinned_allocations_after_first_step", host.pinned_allocations_after_first_step}}},
      {"layer_input", layer_input_json(summary.layer_input)},
      {"optimizer", optimizer_json(summary.optimizer)},
      {"races", summary.races}};
  return json.dump(2) + "\n";
}

void write_output(const std::string& folder, const std::string& name, const std::string& text) {
  const std::filesystem::path path = std::filesystem::path(folder) / name;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    throw std::runtime_error("--job.dump-folder: " + path.string() + " cannot be written");
  }
}

}  // namespace swapline::trainer
