// Stages of one rank share its lanes: their streams, and what comes in order on them.
#include "trainer/pipeline/stage_settings.h"

#include <utility>

namespace swapline::trainer {

StageSettings::StageSettings(const StageParts& parts, Kept kept) {
  for (const Stage& stage : parts.stages) {
    StageSetting setting;
    for (size_t lane = 0; lane < parts.num_lanes(); ++lane) {
      setting.layers.push_back(parts.layers(stage, lane));
      if (kept == Kept::kInputs) {
        setting.inputs.push_back(parts.rank(stage, lane).layers.inputs());
      }
    }
    const RankLanes& lanes = lanes_of(parts, stage);
    setting.forward_lanes = &lanes.forward;
    setting.backward_lanes = &lanes.backward;
    setting.counts = &lanes.counts;
    setting.recomputes = kept != Kept::kGraphs;
    settings_.push_back(std::move(setting));
  }
}

const StageSettings::RankLanes& StageSettings::lanes_of(const StageParts& parts,
                                                        const Stage& stage) {
  const auto found = lanes_.find(stage.rank);
  if (found != lanes_.end()) {
    return found->second;
  }
  std::vector<Device*> devices;
  std::vector<CountCopies> counts;
  for (size_t lane = 0; lane < parts.num_lanes(); ++lane) {
    Rank& rank = parts.rank(stage, lane);
    devices.push_back(&rank.device);
    counts.emplace_back(rank.device, *rank.staging);
  }
  RankLanes lanes{Lanes(devices, "all-to-all forward"),
                  Lanes(devices, "all-to-all backward"),
                  std::move(counts)};
  return lanes_.emplace(stage.rank, std::move(lanes)).first->second;
}

}  // namespace swapline::trainer
