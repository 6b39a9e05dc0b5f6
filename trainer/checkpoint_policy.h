// When a run saves, from where it goes on, and what of a checkpoint it takes.
#pragma once

#include "trainer/config.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace swapline::trainer {

// The parts of a checkpoint besides the model, by torchtitan's names.
inline constexpr const char* kOptimizerPart = "optimizer";
inline constexpr const char* kLrSchedulerPart = "lr_scheduler";
inline constexpr const char* kDataPart = "dataloader";
inline constexpr const char* kTrainStatePart = "train_state";

using CheckpointParts = std::set<std::string>;

// All parts but those of checkpoint.exclude-from-loading. Throws: UsageError.
CheckpointParts parts_to_load(const CheckpointConfig& config);

// Refuses what contradicts itself. Throws: UsageError.
void check_checkpoint(const Config& config);

enum class SaveKind { kNone, kFull, kModelOnly };
SaveKind save_kind(const CheckpointConfig& config, int64_t step, int64_t last_step);

struct CheckpointSource {
  std::string path;
  CheckpointParts parts;  // to take, besides the model
};

// `folder`: the run's own, with `steps` in it. nullopt: there is nothing to go on from.
// Throws: UsageError for a checkpoint.load-step that is not there.
std::optional<CheckpointSource> checkpoint_to_load(const CheckpointConfig& config,
                                                   const std::string& folder,
                                                   const std::vector<int64_t>& steps);

}  // namespace swapline::trainer
