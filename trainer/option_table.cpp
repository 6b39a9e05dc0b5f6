// Every option: name, setting, unit, help, words allowed, least, most. One row each, by section.
#include "trainer/device.h"
#include "trainer/models/flavors.h"
#include "trainer/options.h"
#include "trainer/pipeline/schedule_builders.h"

namespace swapline::trainer {
namespace {

using Rows = std::vector<Option>;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
constexpr bool kAbove = true;  // the least value itself is not allowed

// clang-format off
Rows model_rows(Config& config) {
  ModelConfig& c = config.model;
  return {
      {"job.dump-folder", &config.job.dump_folder, "", "folder for summary.json and trace.json"},
      {"model.name", &c.name, "", "family of models", model_names()},
      {"model.flavor", &c.flavor, "", "size of the model", flavor_names()},
      {"model.num-layers", &c.num_layers, "layers", "0: as the flavor has", {}, 0},
  };
}

Rows training_rows(TrainingConfig& c) {
  return {
      {"training.steps", &c.steps, "steps", "optimizer steps to take", {}, 1},
      {"training.seq-len", &c.seq_len, "tokens", "length of a sequence", {}, 1},
      {"training.local-batch-size", &c.local_batch_size, "sequences",
       "sequences of one micro-batch; with a pipeline, of all its micro-batches", {}, 1},
      {"training.global-batch-size", &c.global_batch_size, "sequences",
       "sequences of one step, a multiple of the local batch size times expert ranks; -1: the same",
       {}, -1},
      {"training.max-norm", &c.max_norm, "",
       "gradients are scaled down to this total norm", {}, 0, kNoLimit, kAbove},
      {"training.dtype", &c.dtype, "",
       "type of parameters, gradients and states", {"float32", "bfloat16"}},
      {"training.num-mtp-modules", &c.num_mtp_modules, "modules",
       "multi-token prediction: modules that foretell one token further each (deepseek_v3)", {}, 0},
  };
}

Rows optimizer_rows(OptimizerConfig& c) {
  return {
      {"optimizer.name", &c.name, "", "update rule; Muon: of matrices, and AdamW of all else",
       {"AdamW", "Adam", "Muon"}},
      {"optimizer.lr", &c.lr, "", "peak learning rate", {}, 0},
      {"optimizer.beta1", &c.beta1, "", "decay of the first moment", {}, 0, 0.9999999},
      {"optimizer.beta2", &c.beta2, "", "decay of the second moment", {}, 0, 0.9999999},
      {"optimizer.eps", &c.eps, "", "added to the denominator", {}, 0},
      {"optimizer.weight-decay", &c.weight_decay, "", "weight decay", {}, 0},
      {"optimizer.swap-optimizer", &c.swap_optimizer, "",
       "keep the optimizer states in host memory"},
      {"optimizer.swap-optimizer-times", &c.swap_optimizer_times, "",
       "the states held on the device are at most all of them divided by this", {}, 1},
      {"optimizer.swap-optimizer-arena-bytes", &c.swap_optimizer_arena_bytes, "bytes",
       "the same limit in bytes; 0: by times"},
      {"optimizer.virtual-optimizer", &c.virtual_optimizer, "",
       "the update itself reads and writes states in host memory, over the link"},
      {"optimizer.virtual-optimizer-size", &c.virtual_optimizer_size, "GiB",
       "how many: all, a number, or one for each pipeline rank, comma-separated; the rest is "
       "swapped with swap-optimizer, else on the device"},
      {"optimizer.swap-optimizer-fraction", &c.swap_optimizer_fraction, "share of the states",
       "the rest stays on the device while there is room", {}, 0, 1},
      {"optimizer.state-dtype", &c.state_dtype, "",
       "type of the moments; auto: the parameters', or float32 with master-weights",
       {"auto", "float32", "bfloat16"}},
      {"optimizer.master-weights", &c.master_weights, "",
       "a float32 copy of bfloat16 parameters among the states"},
      {"optimizer.implementation", &c.implementation, "",
       "kernel of Adam; auto: fused where the device has it",
       {"auto", "fused", "foreach"}},
      {"optimizer.muon-lr", &c.muon_lr, "",
       "peak learning rate of Muon with muon-adjust-lr-fn original; none: optimizer.lr", {}, 0},
      {"optimizer.muon-momentum", &c.muon_momentum, "",
       "decay of Muon's momentum", {}, 0, 0.9999999},
      {"optimizer.muon-enable-nesterov", &c.muon_enable_nesterov, "",
       "Muon looks ahead along its momentum"},
      {"optimizer.muon-ns-steps", &c.muon_ns_steps, "iterations",
       "of Newton-Schulz in an update of Muon", {}, 1, 99},
      {"optimizer.muon-adjust-lr-fn", &c.muon_adjust_lr_fn, "",
       "Muon's learning rate for [m, n]: original: times sqrt(max(1, m / n)); "
       "match_rms_adamw: times 0.2 sqrt(max(m, n)), so that optimizer.lr suits both",
       {"original", "match_rms_adamw"}},
      {"optimizer.muon-hybrid-ns", &c.muon_hybrid_ns, "",
       "iterations beyond the eighth bring singular values to 1, not near it"},
      {"optimizer.swap-merge-buckets", &c.swap_merge_buckets, "matrices",
       "for settings of torchtitan-npu; no effect: small matrices share a copy anyway", {}, 1},
  };
}

Rows lr_scheduler_rows(LrSchedulerConfig& c) {
  return {
      {"lr-scheduler.warmup-steps", &c.warmup_steps, "steps", "steps of linear warm-up", {}, 0},
      {"lr-scheduler.total-steps", &c.total_steps, "steps",
       "length of the schedule; none: training.steps", {}, 1},
      {"lr-scheduler.decay-ratio", &c.decay_ratio, "share of the steps",
       "length of the decay at the end; none: from the end of the warm-up", {}, 0, 1},
      {"lr-scheduler.decay-type", &c.decay_type, "",
       "shape of the decay", {"linear", "sqrt", "cosine"}},
      {"lr-scheduler.min-lr-factor", &c.min_lr_factor, "share of optimizer.lr",
       "where the decay ends", {}, 0, 1},
  };
}

Rows activation_checkpoint_rows(ActivationCheckpointConfig& c) {
  return {
      {"activation-checkpoint.mode", &c.mode, "",
       "full: layers run again in backward; selective: parts of them; none: they keep all",
       {"full", "selective", "none"}},
      {"activation-checkpoint.layers-per-block", &c.layers_per_block, "layers",
       "layers recomputed together, with one kept input", {}, 1},
      {"activation-checkpoint.first-layers", &c.first_layers, "layers",
       "recompute only the first so many, of each pipeline stage; 0: all", {}, 0},
      {"activation-checkpoint.selective-part", &c.selective_part, "",
       "which parts of a layer mode selective runs again", {"attention-core", "mlp", "norms"}},
      {"activation-checkpoint.recompute-ahead", &c.recompute_ahead, "",
       "a stage's last layer runs again before its gradient is there, in the pipeline's bubble"},
  };
}

Rows checkpoint_rows(CheckpointConfig& c) {
  return {
      {"checkpoint.enable", &c.enable, "", "save checkpoints, and go on from the latest"},
      {"checkpoint.folder", &c.folder, "", "where they are, in job.dump-folder"},
      {"checkpoint.interval", &c.interval, "steps", "steps from one to the next", {}, 1},
      {"checkpoint.load-step", &c.load_step, "step",
       "which of the folder's to go on from; -1: the latest", {}, -1},
      {"checkpoint.initial-load-path", &c.initial_load_path, "",
       "a checkpoint, or a folder of safetensors, to begin with while the folder has none"},
      {"checkpoint.initial-load-model-only", &c.initial_load_model_only, "",
       "of that, take the model and nothing else"},
      {"checkpoint.exclude-from-loading", &c.exclude_from_loading, "",
       "what is not taken: optimizer, lr_scheduler, dataloader, train_state, comma-separated"},
      {"checkpoint.keep-latest-k", &c.keep_latest_k, "checkpoints",
       "older ones are deleted; 0: all stay", {}, 0},
      {"checkpoint.last-save-model-only", &c.last_save_model_only, "",
       "the last step's holds the model and nothing else"},
      {"checkpoint.export-dtype", &c.export_dtype, "",
       "type of its parameters; float32: as they are", {"float32", "bfloat16", "float16"}},
      {"checkpoint.async-mode", &c.async_mode, "",
       "async: written while the next step runs", {"disabled", "async"}},
      {"checkpoint.enable-first-step-checkpoint", &c.enable_first_step_checkpoint, "",
       "save after the first step too"},
      {"checkpoint.load-only", &c.load_only, "", "save none"},
  };
}

Rows parallelism_rows(ParallelismConfig& c) {
  return {
      {"parallelism.pipeline-parallel-degree", &c.pipeline_parallel_degree, "devices",
       "devices that the layers are spread over; 1: no pipeline", {}, 1, 8},
      {"parallelism.pipeline-parallel-schedule", &c.pipeline_parallel_schedule, "",
       "order of the micro-batches", schedule_names()},
      {"parallelism.pipeline-parallel-microbatch-size", &c.pipeline_parallel_microbatch_size,
       "sequences", "micro-batches of a step: the local batch size divided by this", {}, 1},
      {"parallelism.pipeline-parallel-layers-per-stage", &c.pipeline_parallel_layers_per_stage,
       "layers", "of each stage, the last takes the rest; or a list, one each; empty: evenly"},
      {"parallelism.expert-parallel-degree", &c.expert_parallel_degree, "devices",
       "devices that share the experts, each with data of its own (deepseek_v3)", {}, 1, 8},
      {"parallelism.moe-fb-overlap", &c.moe_fb_overlap, "",
       "run a micro-batch forward against another's backward, hiding each one's all-to-all"},
  };
}

Rows swap_layer_input_rows(SwapLayerInputConfig& c) {
  return {
      {"swap-layer-input.enable", &c.enable, "",
       "keep the inputs of recomputed layers in host memory"},
      {"swap-layer-input.prefetch", &c.prefetch, "inputs",
       "inputs brought back ahead of their backward", {}, 0},
      {"swap-layer-input.min-bytes", &c.min_bytes, "bytes",
       "smaller inputs stay on the device"},
      {"swap-layer-input.max-host-bytes", &c.max_host_bytes, "bytes",
       "most host memory for inputs at once, others stay; 0: no limit"},
      {"swap-layer-input.keep-last", &c.keep_last, "inputs",
       "inputs at the end of forward that stay; auto: the last, if its backward comes next",
       {}, 0, kNoLimit, !kAbove, "auto"},
      {"swap-layer-input.max-swapping-out", &c.max_swapping_out, "inputs",
       "inputs still being copied out that may outlive their layer before compute waits; "
       "1: strict; auto: as many as fit under the peak that strict has",
       {}, 0, kNoLimit, !kAbove, "auto"},
  };
}

Rows validator_rows(ValidatorConfig& c) {
  return {
      {"validator.enable", &c.enable, "", "tell the mean loss on other data now and then"},
      {"validator.freq", &c.freq, "steps", "steps from one validation to the next", {}, 1},
      {"validator.steps", &c.steps, "batches",
       "batches of each, as large as a step's, the same each time; -1: all of the data", {}, -1},
      {"validator.dataset-path", &c.dataset_path, "",
       "its texts, as data.path; empty: the last tenth of data.path, where training comes last"},
  };
}

Rows device_rows(DeviceConfig& c) {
  return {
      {"device.type", &c.type, "",
       "sim: the simulated accelerator; else a device of this torch, one in a process",
       {"sim", "cpu", "cuda", "npu", "xpu"}},
      {"device.preset", &c.preset, "", "which accelerator sim is", device_preset_names()},
      {"device.memory", &c.memory, "bytes", "memory of the device (sim); 0: the preset's"},
      {"device.dry-run", &c.dry_run, "", "times and memory without numbers (sim)"},
      {"device.check-races", &c.check_races, "", "watch every access for races (sim)"},
      {"device.late-copies", &c.late_copies, "",
       "move bytes only when something waits for them: shows missing waits (sim)"},
      {"device.link-slowdown", &c.link_slowdown, "times",
       "copies take this many times longer (sim)", {}, 0, kNoLimit, kAbove},
  };
}

Rows report_rows(Config& c) {
  return {
      {"data.path", &c.data.path, "",
       "a folder of texts, a text file, or JSON-lines with \"text\"; empty: the Python library"},
      {"metrics.log-freq", &c.metrics.log_freq, "steps",
       "steps from one log line to the next", {}, 1},
      {"metrics.progress-bar", &c.metrics.progress_bar, "", "draw a bar when it is a terminal"},
      {"profiling.enable-trace", &c.profiling.enable_trace, "",
       "write trace.json for Perfetto (sim)"},
      {"debug.seed", &c.debug.seed, "", "seed of the parameters", {}, 0},
      {"debug.moe-force-load-balance", &c.debug.moe_force_load_balance, "",
       "tokens go to the experts in turn, whatever the router says (deepseek_v3)"},
  };
}
// clang-format on

}  // namespace

std::vector<Option> option_table(Config& config) {
  std::vector<Option> table;
  for (Rows rows : {model_rows(config),
                    training_rows(config.training),
                    optimizer_rows(config.optimizer),
                    lr_scheduler_rows(config.lr_scheduler),
                    activation_checkpoint_rows(config.activation_checkpoint),
                    checkpoint_rows(config.checkpoint),
                    parallelism_rows(config.parallelism),
                    swap_layer_input_rows(config.swap_layer_input),
                    validator_rows(config.validator),
                    device_rows(config.device),
                    report_rows(config)}) {
    table.insert(table.end(), rows.begin(), rows.end());
  }
  return table;
}

}  // namespace swapline::trainer
