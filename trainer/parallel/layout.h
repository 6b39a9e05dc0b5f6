// How a run is spread over devices: the ranks of the pipeline, each of them on as many devices as
// ranks share the experts (lanes). Device = rank * lanes + lane.
#pragma once

#include "trainer/config.h"
#include "trainer/models/model.h"
#include "trainer/pipeline/schedule.h"
#include "trainer/pipeline/stage_runner.h"

#include <cstdint>
#include <vector>

namespace swapline::trainer {

struct Layout {
  int64_t num_lanes = 1;
  int64_t num_microbatches = 1;  // of one step, for each lane
  int64_t microbatch_size = 1;   // sequences
  Schedule schedule;
  std::vector<Stage> stages;

  int64_t num_ranks() const { return schedule.num_ranks; }
  int64_t num_devices() const { return num_ranks() * num_lanes; }
  int64_t sequences_per_step() const { return num_lanes * num_microbatches * microbatch_size; }
  // Layers that each pass of a rank's stages has at most, MTP included.
  int64_t layers_in_a_pass(size_t rank, int64_t num_mtp_layers) const;
  // Where the copy of the model for `lane` lives. `devices`: of all ranks and lanes.
  Placement placement(size_t lane, const Devices& devices) const;
};

// Throws: UsageError for what does not go together.
Layout make_layout(const Config& config);

}  // namespace swapline::trainer
