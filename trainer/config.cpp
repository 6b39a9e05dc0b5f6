// Combinations of settings that contradict each other.
#include "trainer/config.h"

namespace swapline::trainer {
namespace {

void check_device(const Config& config) {
  const DeviceConfig& device = config.device;
  if (device.type == "sim") {
    return;
  }
  const auto refuse = [&](const std::string& option) {
    throw UsageError("--" + option + ": found with --device.type " + device.type +
                     ", allowed only with --device.type sim");
  };
  if (device.dry_run) {
    refuse("device.dry-run");
  }
  if (device.late_copies) {
    refuse("device.late-copies");
  }
  if (device.link_slowdown != 1) {
    refuse("device.link-slowdown");
  }
  if (device.memory.value > 0) {
    refuse("device.memory");
  }
  if (config.profiling.enable_trace) {
    refuse("profiling.enable-trace");
  }
  const auto refuse_swap = [&](const std::string& option) {
    throw UsageError("--" + option +
                     ": found with --device.type cpu, which has no second memory to swap from; "
                     "allowed with --device.type sim, cuda or npu");
  };
  if (device.type == "cpu" && config.swap_layer_input.enable) {
    refuse_swap("swap-layer-input.enable");
  }
  if (device.type == "cpu" && config.optimizer.swap_optimizer) {
    refuse_swap("optimizer.swap-optimizer");
  }
}

}  // namespace

void check_contradictions(const Config& config) {
  const TrainingConfig& training = config.training;
  if (training.global_batch_size >= 0 &&
      (training.global_batch_size == 0 ||
       training.global_batch_size % training.local_batch_size != 0)) {
    throw UsageError("--training.global-batch-size: found " +
                     std::to_string(training.global_batch_size) +
                     ", allowed is -1 or a multiple of --training.local-batch-size, " +
                     std::to_string(training.local_batch_size));
  }
  check_device(config);
}

}  // namespace swapline::trainer
