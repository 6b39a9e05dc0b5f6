// Combinations of settings that contradict each other.
#include "trainer/config.h"

#include "trainer/checkpoint_policy.h"
#include "trainer/rank_optimizer.h"
#include "trainer/virtual_optimizer.h"

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
                     "allowed with --device.type sim, cuda, npu or xpu");
  };
  if (device.type == "cpu" && config.swap_layer_input.enable) {
    refuse_swap("swap-layer-input.enable");
  }
  if (device.type == "cpu" && config.optimizer.swap_optimizer) {
    refuse_swap("optimizer.swap-optimizer");
  }
}

void check_optimizer(const Config& config) {
  check_muon(config.optimizer);
  if (config.optimizer.master_weights && config.training.dtype == "float32") {
    throw UsageError(
        "--optimizer.master-weights: found with --training.dtype float32, whose parameters are "
        "float32 already; allowed with bfloat16");
  }
}

void check_batches(const Config& config) {
  const TrainingConfig& training = config.training;
  const ParallelismConfig& parallelism = config.parallelism;
  const int64_t on_all_lanes = training.local_batch_size * parallelism.expert_parallel_degree;
  if (training.global_batch_size >= 0 &&
      (training.global_batch_size == 0 || training.global_batch_size % on_all_lanes != 0)) {
    throw UsageError(
        "--training.global-batch-size: found " + std::to_string(training.global_batch_size) +
        ", allowed is -1 or a multiple of --training.local-batch-size" +
        (parallelism.expert_parallel_degree > 1 ? " times --parallelism.expert-parallel-degree, "
                                                : ", ") +
        std::to_string(on_all_lanes));
  }
  if (parallelism.pipeline_parallel_degree > 1 &&
      training.local_batch_size % parallelism.pipeline_parallel_microbatch_size != 0) {
    throw UsageError("--parallelism.pipeline-parallel-microbatch-size: found " +
                     std::to_string(parallelism.pipeline_parallel_microbatch_size) +
                     ", allowed is a divisor of --training.local-batch-size, " +
                     std::to_string(training.local_batch_size));
  }
}

void check_validator(const Config& config) {
  if (config.validator.steps == 0) {
    throw UsageError("--validator.steps: found 0, allowed is 1 or more, or -1 for all of the data");
  }
}

void check_parallelism(const Config& config) {
  const ParallelismConfig& parallelism = config.parallelism;
  const ActivationCheckpointConfig& recompute = config.activation_checkpoint;
  if (recompute.recompute_ahead &&
      (recompute.mode != "full" || parallelism.pipeline_parallel_degree == 1 ||
       parallelism.expert_parallel_degree > 1)) {
    throw UsageError(
        "--activation-checkpoint.recompute-ahead: allowed only with --activation-checkpoint.mode "
        "full, a --parallelism.pipeline-parallel-degree above 1, in whose bubble it runs, and "
        "--parallelism.expert-parallel-degree 1");
  }
  const int64_t num_devices =
      parallelism.pipeline_parallel_degree * parallelism.expert_parallel_degree;
  if (num_devices > 1 && config.device.type == "cpu") {
    throw UsageError("--parallelism: found " + std::to_string(num_devices) +
                     " devices with --device.type cpu, allowed is 1; there is one cpu");
  }
  // Not every backend lets the events of one device order the work of another.
  if (num_devices > 1 && config.device.type != "sim") {
    throw UsageError(
        "--parallelism: found --parallelism.pipeline-parallel-degree times "
        "--parallelism.expert-parallel-degree = " +
        std::to_string(num_devices) + " devices with --device.type " + config.device.type +
        ", allowed is 1 in a process; several with --device.type sim");
  }
  if (num_devices > 8 && config.device.type == "sim") {
    throw UsageError(
        "--parallelism: found --parallelism.pipeline-parallel-degree times "
        "--parallelism.expert-parallel-degree = " +
        std::to_string(num_devices) + ", allowed with --device.type sim is at most 8");
  }
  if (parallelism.expert_parallel_degree == 1 && parallelism.moe_fb_overlap) {
    throw UsageError(
        "--parallelism.moe-fb-overlap: found with --parallelism.expert-parallel-degree 1, where "
        "nothing travels that could be hidden; allowed with 2 or more");
  }
  if (parallelism.expert_parallel_degree == 1) {
    return;
  }
  const auto refuse = [](const std::string& option, const std::string& allowed) {
    throw UsageError("--" + option +
                     " does not go with --parallelism.expert-parallel-degree above 1; allowed is " +
                     allowed);
  };
  if (config.model.name != "deepseek_v3") {
    refuse("model.name: found " + config.model.name + ", which", "deepseek_v3");
  }
  if (config.training.num_mtp_modules > 0) {
    refuse("training.num-mtp-modules: found " + std::to_string(config.training.num_mtp_modules) +
               ", which",
           "0");
  }
  if (recompute.mode == "selective") {
    refuse("activation-checkpoint.mode: found selective, which", "full or none");
  }
  if (recompute.layers_per_block != 1) {
    refuse("activation-checkpoint.layers-per-block: found " +
               std::to_string(recompute.layers_per_block) + ", which",
           "1");
  }
  if (recompute.first_layers != 0) {
    refuse("activation-checkpoint.first-layers: found " + std::to_string(recompute.first_layers) +
               ", which",
           "0");
  }
}

}  // namespace

void check_contradictions(const Config& config) {
  check_batches(config);
  check_optimizer(config);
  check_parallelism(config);
  check_validator(config);
  check_device(config);
  check_virtual_optimizer(config);
  check_checkpoint(config);
}

}  // namespace swapline::trainer
