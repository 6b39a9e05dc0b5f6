// From options to a schedule and stages.
#include "trainer/parallel/layout.h"

#include "trainer/pipeline/layer_split.h"
#include "trainer/pipeline/schedule_builders.h"
#include "trainer/pipeline/schedule_pairing.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string>

namespace swapline::trainer {
namespace {

std::vector<int64_t> numbers_in(const std::string& text) {
  std::vector<int64_t> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    const bool ends_well = next == end || (*next == ',' && next + 1 != end);
    if (error != std::errc() || !ends_well) {
      throw UsageError("--parallelism.pipeline-parallel-layers-per-stage: found \"" + text +
                       "\", allowed are numbers with commas between them, e.g. 7,8,8,9");
    }
    numbers.push_back(number);
    at = next == end ? end : next + 1;
  }
  return numbers;
}

ScheduleRequest request_of(const Config& config, int64_t num_microbatches) {
  const ParallelismConfig& parallelism = config.parallelism;
  ScheduleRequest request;
  request.name = parallelism.pipeline_parallel_schedule;
  request.num_ranks = static_cast<int>(parallelism.pipeline_parallel_degree);
  request.num_microbatches = static_cast<int>(num_microbatches);
  request.overlap = parallelism.moe_fb_overlap;
  return request;
}

// In DualPipeV pairs take the place of neighbours that could stay apart; the others have an order
// of their own for pairs.
Schedule schedule_for(const ScheduleRequest& request,
                      const std::vector<int64_t>& layers,
                      double head_in_layers) {
  Schedule schedule = make_schedule(request);
  if (!request.overlap || schedule.name != "DualPipeV") {
    return schedule;
  }
  ScheduleRequest apart = request;
  apart.overlap = false;
  return pair_where_faster(
      make_schedule(apart), schedule, {{layers.begin(), layers.end()}, head_in_layers});
}

std::vector<Stage> stages_of(const Schedule& schedule, const std::vector<int64_t>& layers) {
  std::vector<Stage> stages;
  size_t first_layer = 0;
  for (size_t index = 0; index < layers.size(); ++index) {
    Stage stage;
    stage.rank = static_cast<size_t>(schedule.rank_of_stage[index]);
    stage.first_layer = first_layer;
    stage.num_layers = static_cast<size_t>(layers[index]);
    stage.is_first = index == 0;
    stage.is_last = index + 1 == layers.size();
    first_layer += stage.num_layers;
    stages.push_back(stage);
  }
  return stages;
}

}  // namespace

int64_t Layout::layers_in_a_pass(size_t rank, int64_t num_mtp_layers) const {
  int64_t most = 0;
  for (const Stage& stage : stages) {
    if (stage.rank == rank) {
      most = std::max(
          most, static_cast<int64_t>(stage.num_layers) + (stage.is_last ? num_mtp_layers : 0));
    }
  }
  return most;
}

Placement Layout::placement(size_t lane, const Devices& devices) const {
  const auto device_of = [&](const Stage& stage) {
    return devices[stage.rank * static_cast<size_t>(num_lanes) + lane].get();
  };
  Placement placement;
  placement.embedding = device_of(stages.front());
  placement.head = device_of(stages.back());
  for (const Stage& stage : stages) {
    placement.layers.insert(placement.layers.end(), stage.num_layers, device_of(stage));
  }
  return placement;
}

Layout make_layout(const Config& config) {
  Layout layout;
  const bool is_pipeline = config.parallelism.pipeline_parallel_degree > 1;
  layout.num_lanes = config.parallelism.expert_parallel_degree;
  layout.microbatch_size = is_pipeline ? config.parallelism.pipeline_parallel_microbatch_size
                                       : config.training.local_batch_size;
  layout.num_microbatches = config.sequences_per_step() / layout.num_lanes / layout.microbatch_size;
  try {
    const ScheduleRequest request = request_of(config, layout.num_microbatches);
    const ModelFigures figures = model_figures(config);
    const std::vector<int64_t> layers =
        split_layers(figures.num_layers,
                     num_stages_of(request),
                     numbers_in(config.parallelism.pipeline_parallel_layers_per_stage));
    layout.schedule = schedule_for(request, layers, figures.head_in_layers);
    layout.stages = stages_of(layout.schedule, layers);
  } catch (const std::invalid_argument& error) {
    throw UsageError(error.what());
  }
  return layout;
}

}  // namespace swapline::trainer
