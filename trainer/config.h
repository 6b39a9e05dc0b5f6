// Every setting of the trainer, by section, with its default. What the settings mean, their units
// and what is allowed stand once, in options.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

namespace swapline::trainer {

// The user asked for something that cannot be: exit status 2. The message is one line.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A number of bytes, written as 96MiB, 1.5GB or 4096.
struct Bytes {
  size_t value = 0;
};

struct JobConfig {
  std::string dump_folder = "./outputs";
};

struct ModelConfig {
  std::string name = "llama3";
  std::string flavor = "debugmodel";
  int64_t num_layers = 0;
};

struct TrainingConfig {
  int64_t steps = 40;
  int64_t seq_len = 256;
  int64_t local_batch_size = 4;
  int64_t global_batch_size = -1;
  double max_norm = 1.0;
  std::string dtype = "float32";
  int64_t num_mtp_modules = 0;
};

struct OptimizerConfig {
  std::string name = "AdamW";
  double lr = 8e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool swap_optimizer = false;
  int64_t swap_optimizer_times = 16;
  Bytes swap_optimizer_arena_bytes;
  bool virtual_optimizer = false;
  std::string virtual_optimizer_size = "all";  // or GiB: one number, or one for each rank
  double swap_optimizer_fraction = 1;
  std::string state_dtype = "auto";
  bool master_weights = false;
  std::string implementation = "auto";
  std::optional<double> muon_lr;  // none: lr
  double muon_momentum = 0.95;
  bool muon_enable_nesterov = true;
  int64_t muon_ns_steps = 5;
  std::string muon_adjust_lr_fn = "match_rms_adamw";
  bool muon_hybrid_ns = false;
  int64_t swap_merge_buckets = 1;
};

struct LrSchedulerConfig {
  int64_t warmup_steps = 2;
  std::optional<int64_t> total_steps;
  std::optional<double> decay_ratio;
  std::string decay_type = "linear";
  double min_lr_factor = 0.0;
};

struct ActivationCheckpointConfig {
  std::string mode = "full";
  int64_t layers_per_block = 1;
  int64_t first_layers = 0;
  std::string selective_part = "attention-core";
  bool recompute_ahead = false;
};

struct CheckpointConfig {
  bool enable = false;
  std::string folder = "checkpoint";
  int64_t interval = 500;
  int64_t load_step = -1;
  std::string initial_load_path;
  bool initial_load_model_only = true;
  std::string exclude_from_loading;  // parts of a checkpoint, comma-separated
  int64_t keep_latest_k = 10;
  bool last_save_model_only = true;
  std::string export_dtype = "float32";
  std::string async_mode = "disabled";
  bool enable_first_step_checkpoint = false;
  bool load_only = false;
};

struct ParallelismConfig {
  int64_t pipeline_parallel_degree = 1;
  std::string pipeline_parallel_schedule = "1F1B";
  int64_t pipeline_parallel_microbatch_size = 1;
  std::string pipeline_parallel_layers_per_stage;  // numbers, comma-separated; empty: evenly
  int64_t expert_parallel_degree = 1;
  bool moe_fb_overlap = false;
};

struct SwapLayerInputConfig {
  bool enable = false;
  int64_t prefetch = 1;
  Bytes min_bytes;
  Bytes max_host_bytes;
  std::optional<int64_t> keep_last;         // none: learned
  std::optional<int64_t> max_swapping_out;  // none: learned
};

struct DataConfig {
  std::string path;  // empty: the source texts found when the program was built
};

struct ValidatorConfig {
  bool enable = false;
  int64_t freq = 10;
  int64_t steps = 4;
  std::string dataset_path;  // empty: the end of the texts that are trained on
};

struct DeviceConfig {
  std::string type = "sim";
  std::string preset = "ascend-910b";
  Bytes memory;
  bool dry_run = false;
  bool check_races = true;
  bool late_copies = false;
  double link_slowdown = 1.0;
};

struct MetricsConfig {
  int64_t log_freq = 1;
  bool progress_bar = true;
};

struct ProfilingConfig {
  bool enable_trace = false;
};

struct DebugConfig {
  int64_t seed = 42;
  bool moe_force_load_balance = false;
};

struct Config {
  JobConfig job;
  ModelConfig model;
  TrainingConfig training;
  OptimizerConfig optimizer;
  LrSchedulerConfig lr_scheduler;
  ActivationCheckpointConfig activation_checkpoint;
  CheckpointConfig checkpoint;
  ParallelismConfig parallelism;
  SwapLayerInputConfig swap_layer_input;
  DataConfig data;
  ValidatorConfig validator;
  DeviceConfig device;
  MetricsConfig metrics;
  ProfilingConfig profiling;
  DebugConfig debug;

  // Sequences of one optimizer step, on all ranks that train on data of their own.
  int64_t sequences_per_step() const {
    return training.global_batch_size < 0
               ? training.local_batch_size * parallelism.expert_parallel_degree
               : training.global_batch_size;
  }
  int64_t lr_total_steps() const { return lr_scheduler.total_steps.value_or(training.steps); }
};

// Refuses what no single option can see: combinations that contradict each other.
// Throws: UsageError.
void check_contradictions(const Config& config);

}  // namespace swapline::trainer
