// What stands behind Adam: its parameters, the placement's states, and the work of a step.
#pragma once

#include "swapline/optimizer/adam.h"
#include "swapline/optimizer/adam_params.h"
#include "swapline/optimizer/adam_update.h"
#include "swapline/optimizer/chunk_plan.h"
#include "swapline/optimizer/host_states.h"
#include "swapline/optimizer/resident_states.h"
#include "swapline/optimizer/scratch.h"
#include "swapline/optimizer/state_dtypes.h"
#include "swapline/optimizer/swap_pipeline.h"

#include <functional>
#include <optional>

namespace swapline {

struct Adam::Impl {
  // What a step does to a parameter.
  struct Work {
    at::Tensor grad;  // undefined: nothing
    at::Tensor step;
    int64_t num_updated = 0;  // elements whose update is enqueued
  };

  Impl(std::shared_ptr<SwapContext> the_context,
       const std::vector<AdamGroup>& groups,
       const AdamOptions& the_options);

  int num_moments(size_t param) const { return had_amsgrad[params[param].group] ? 3 : 2; }
  std::vector<at::ScalarType> rows(size_t param) const {
    return dtypes[param].rows(num_moments(param));
  }
  void check_usable() const;
  void add_host_states(const std::vector<size_t>& newcomers);
  void plan_chunks();
  void collect_work();
  void make_step_tensors();
  std::vector<size_t> chunks_where(const std::function<bool(size_t)>& is_wanted) const;
  void update_resident();
  void update_swapped();
  void update_chunk(const Chunk& chunk, const at::Tensor& slot);
  void add_operands(size_t param,
                    at::Tensor tensor,
                    at::Tensor grad,
                    std::vector<at::Tensor> states);
  size_t scratch_bytes(size_t param, int64_t num_elements) const;
  size_t scratch_bytes(const Chunk& chunk, const std::function<bool(size_t)>& is_wanted) const;
  detail::Scratch make_scratch(size_t bytes);
  void count(size_t param, int64_t num_elements);
  void step();
  void fail(const std::exception& error);
  std::string progress() const;

  std::shared_ptr<SwapContext> context;
  AdamOptions options;
  std::vector<AdamSettings> settings;
  std::vector<bool> had_amsgrad;  // per group, at construction
  detail::AdamParams params;
  std::vector<detail::StateDtypes> dtypes;  // per parameter
  c10::Device device;
  std::optional<detail::HostStates> host;  // both or neither: kSwap
  std::optional<detail::SwapPipeline> pipeline;
  detail::ResidentStates resident;
  detail::AdamUpdate update;
  size_t planned_scratch_bytes = 0;  // when every parameter of a chunk has a gradient
  detail::Scratch scratch;           // only during step()
  std::vector<Work> work;            // per parameter; only during step()
  bool has_updated = false;
  bool has_warned_small = false;
  bool has_warned_short = false;
  std::string failure;
};

}  // namespace swapline
