// What stages whose lanes share experts are run with: their layers and inputs on each lane, and the
// communication of each rank of the pipeline.
#pragma once

#include "trainer/pipeline/expert_walks.h"
#include "trainer/pipeline/stage_runner.h"

#include <cstddef>
#include <map>
#include <vector>

namespace swapline::trainer {

// What a forward leaves for the backward of its layers.
enum class Kept { kNothing, kInputs, kGraphs };

class StageSettings {
 public:
  // What `parts` names must outlive it.
  StageSettings(const StageParts& parts, Kept kept);
  StageSettings(const StageSettings&) = delete;
  StageSettings& operator=(const StageSettings&) = delete;

  const StageSetting& of(const Pass& pass) const {
    return settings_[static_cast<size_t>(pass.stage)];
  }

 private:
  struct RankLanes {
    Lanes forward;
    Lanes backward;
    std::vector<CountCopies> counts;
  };
  const RankLanes& lanes_of(const StageParts& parts, const Stage& stage);

  std::map<size_t, RankLanes> lanes_;  // by rank of the pipeline
  std::vector<StageSetting> settings_;
};

}  // namespace swapline::trainer
