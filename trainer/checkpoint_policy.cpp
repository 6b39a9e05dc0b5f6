// torchtitan's rules on checkpoints.
#include "trainer/checkpoint_policy.h"

#include <algorithm>
#include <sstream>

namespace swapline::trainer {
namespace {

std::string joined(const std::vector<int64_t>& steps) {
  std::string text;
  for (const int64_t step : steps) {
    text += (text.empty() ? "" : ", ") + std::to_string(step);
  }
  return text.empty() ? "none, as there is no checkpoint" : text;
}

}  // namespace

CheckpointParts parts_to_load(const CheckpointConfig& config) {
  const CheckpointParts all = {kOptimizerPart, kLrSchedulerPart, kDataPart, kTrainStatePart};
  CheckpointParts parts = all;
  std::istringstream words(config.exclude_from_loading);
  std::string word;
  while (std::getline(words, word, ',')) {
    std::replace(word.begin(), word.end(), '-', '_');
    if (all.count(word) == 0) {
      throw UsageError("--checkpoint.exclude-from-loading: found \"" + word +
                       "\", allowed are optimizer, lr_scheduler, dataloader, train_state, "
                       "comma-separated");
    }
    parts.erase(word);
  }
  return parts;
}

void check_checkpoint(const Config& config) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  parts_to_load(checkpoint);
  if (checkpoint.keep_latest_k == 1) {
    throw UsageError(
        "--checkpoint.keep-latest-k: found 1, allowed is 0, for all, or 2 and more: one may turn "
        "out to be of no use");
  }
  if (checkpoint.enable && config.device.dry_run) {
    throw UsageError(
        "--checkpoint.enable: found with --device.dry-run, which has no numbers to save; allowed "
        "without it");
  }
}

SaveKind save_kind(const CheckpointConfig& config, int64_t step, int64_t last_step) {
  if (config.load_only) {
    return SaveKind::kNone;
  }
  if (step == last_step) {
    return config.last_save_model_only ? SaveKind::kModelOnly : SaveKind::kFull;
  }
  const bool is_due =
      step % config.interval == 0 || (step == 1 && config.enable_first_step_checkpoint);
  return is_due ? SaveKind::kFull : SaveKind::kNone;
}

std::optional<CheckpointSource> checkpoint_to_load(const CheckpointConfig& config,
                                                   const std::string& folder,
                                                   const std::vector<int64_t>& steps) {
  if (config.load_step >= 0 &&
      std::find(steps.begin(), steps.end(), config.load_step) == steps.end()) {
    throw UsageError("--checkpoint.load-step: found " + std::to_string(config.load_step) +
                     ", allowed in " + folder + " is -1 or: " + joined(steps));
  }
  if (!steps.empty()) {
    const int64_t step = config.load_step >= 0 ? config.load_step : steps.back();
    return CheckpointSource{folder + "/step-" + std::to_string(step), parts_to_load(config)};
  }
  if (config.initial_load_path.empty()) {
    return std::nullopt;
  }
  return CheckpointSource{
      config.initial_load_path,
      config.initial_load_model_only ? CheckpointParts{} : parts_to_load(config)};
}

}  // namespace swapline::trainer
