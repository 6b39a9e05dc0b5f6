// Loading and saving what a run is.
#include "trainer/checkpoints.h"

#include "swapline/checkpoint/scalars.h"
#include "swapline/optimizer/adam.h"
#include "swapline/optimizer/muon.h"
#include "trainer/checkpoint_content.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace swapline::trainer {
namespace {

constexpr const char* kTrainStateFile = "train_state.json";
constexpr const char* kOptimizerFile = "optimizer.json";

CheckpointStore make_store(const Config& config, std::shared_ptr<FileOps> ops) {
  CheckpointStoreOptions options;
  options.keep_latest_k = config.checkpoint.keep_latest_k;
  options.ops = std::move(ops);
  const std::filesystem::path folder = config.job.dump_folder;
  return CheckpointStore((folder / config.checkpoint.folder).string(), options);
}

// What float32 means: the parameters as they are.
std::optional<at::ScalarType> export_dtype(const CheckpointConfig& config) {
  if (config.export_dtype == "float32") {
    return std::nullopt;
  }
  return config.export_dtype == "bfloat16" ? at::kBFloat16 : at::kHalf;
}

Scalars scalars_of(const TrainState& state) {
  return {{"train_state.step", state.step},
          {"train_state.ntokens_seen", state.num_tokens},
          {"lr_scheduler.last_epoch", state.schedule_step},
          {"dataloader.position", state.data_position},
          {"dataloader.text_bytes", state.data_bytes}};
}

Scalars scalars_of(const AdamSettings& settings) {
  return {{"lr", settings.lr},
          {"betas", std::vector<double>{settings.beta1, settings.beta2}},
          {"eps", settings.eps},
          {"weight_decay", settings.weight_decay},
          {"amsgrad", settings.amsgrad},
          {"maximize", settings.maximize},
          {"decoupled_weight_decay", settings.decoupled}};
}

Scalars scalars_of(const MuonSettings& settings) {
  return {
      {"lr", settings.lr},
      {"weight_decay", settings.weight_decay},
      {"momentum", settings.momentum},
      {"nesterov", settings.nesterov},
      {"ns_coefficients",
       std::vector<double>(settings.ns_coefficients.begin(), settings.ns_coefficients.end())},
      {"eps", settings.eps},
      {"ns_steps", settings.ns_steps},
      {"adjust_lr_fn",
       std::string(settings.lr_rule == MuonLrRule::kOriginal ? "original" : "match_rms_adamw")}};
}

// A group's hyperparameters under torch's names.
Scalars group_of(Optimizer& optimizer, size_t group) {
  if (auto* const muon = dynamic_cast<Muon*>(&optimizer)) {
    return muon->has_matrices(group) ? scalars_of(muon->settings(group))
                                     : scalars_of(muon->adam_settings(group));
  }
  return scalars_of(dynamic_cast<Adam&>(optimizer).settings(group));
}

// Of each parameter.
std::unordered_map<const at::TensorImpl*, Scalars> groups_of(
    const std::vector<SavedTensor>& tensors) {
  std::set<Optimizer*> optimizers;
  for (const SavedTensor& saved : tensors) {
    optimizers.insert(saved.shards.front().front().optimizer);
  }
  optimizers.erase(nullptr);
  std::unordered_map<const at::TensorImpl*, Scalars> groups;
  for (Optimizer* optimizer : optimizers) {
    for (size_t group = 0; group < optimizer->num_groups(); ++group) {
      for (const at::Tensor& parameter : optimizer->params(group)) {
        groups[parameter.unsafeGetTensorImpl()] = group_of(*optimizer, group);
      }
    }
  }
  return groups;
}

void load_state(const std::string& folder, const CheckpointParts& parts, TrainState& state) {
  const std::string path = folder + "/" + kTrainStateFile;
  if (!std::filesystem::exists(path)) {
    throw std::runtime_error(
        path +
        " is missing: the checkpoint holds a model only, as --checkpoint.last-save-model-only "
        "makes the last one; choose another with --checkpoint.load-step, or begin a new "
        "--checkpoint.folder with --checkpoint.initial-load-path " +
        folder);
  }
  const Scalars scalars = read_scalars(path);
  const auto number = [&](const char* name) { return int_of(scalars, name, path); };
  TrainState loaded = state;
  if (parts.count(kTrainStatePart) != 0) {
    loaded.step = number("train_state.step");
    loaded.num_tokens = number("train_state.ntokens_seen");
  }
  if (parts.count(kLrSchedulerPart) != 0) {
    loaded.schedule_step = number("lr_scheduler.last_epoch");
  }
  if (parts.count(kDataPart) != 0) {
    loaded.data_position = number("dataloader.position");
    if (number("dataloader.text_bytes") != state.data_bytes) {
      throw std::runtime_error(path + ": dataloader.text_bytes: found " +
                               std::to_string(number("dataloader.text_bytes")) +
                               ", allowed are the " + std::to_string(state.data_bytes) +
                               " bytes of --data.path, or --checkpoint.exclude-from-loading "
                               "dataloader to begin with its first");
    }
  }
  state = loaded;
}

}  // namespace

Checkpoints::Checkpoints(const Config& config,
                         std::vector<SavedTensor> tensors,
                         std::shared_ptr<FileOps> ops)
    : config_(config), tensors_(std::move(tensors)), writer_(make_store(config, std::move(ops))) {}

std::string Checkpoints::load(TrainState& state) {
  const CheckpointStore& store = writer_.store();
  const std::optional<CheckpointSource> source =
      checkpoint_to_load(config_.checkpoint, store.folder(), store.steps());
  if (!source) {
    return "";
  }
  CheckpointParts parts = source->parts;
  const bool with_optimizer = parts.erase(kOptimizerPart) != 0;
  TrainState loaded = state;
  if (!parts.empty()) {
    load_state(source->path, parts, loaded);
  }
  load_content(source->path, tensors_, with_optimizer);
  state = loaded;
  return source->path;
}

std::string Checkpoints::save_if_due(const TrainState& state) {
  const SaveKind kind = save_kind(config_.checkpoint, state.step, config_.training.steps);
  if (kind == SaveKind::kNone) {
    return "";
  }
  writer_.wait();
  writer_.start(state.step, content(state, kind));
  if (config_.checkpoint.async_mode == "disabled") {
    writer_.wait();
  }
  return writer_.store().path(state.step);
}

CheckpointContent Checkpoints::content(const TrainState& state, SaveKind kind) const {
  CheckpointContent content;
  if (kind == SaveKind::kModelOnly) {
    content.tensors = model_content(tensors_, export_dtype(config_.checkpoint));
    return content;
  }
  content.tensors = model_content(tensors_, std::nullopt);
  std::vector<NamedTensor> states = optimizer_content(tensors_);
  std::move(states.begin(), states.end(), std::back_inserter(content.tensors));
  content.scalars[kTrainStateFile] = scalars_of(state);
  content.scalars[kOptimizerFile] = param_groups();
  return content;
}

// For torch's optimizers; a run here takes these from its own configuration.
Scalars Checkpoints::param_groups() const {
  const auto groups = groups_of(tensors_);
  Scalars all;
  for (const SavedTensor& saved : tensors_) {
    if (saved.is_parameter()) {
      const at::Tensor& parameter = saved.shards.front().front().tensor;
      for (const auto& [key, value] : groups.at(parameter.unsafeGetTensorImpl())) {
        all["optimizer.param_groups." + saved.name + "." + key] = value;
      }
    }
  }
  return all;
}

}  // namespace swapline::trainer
