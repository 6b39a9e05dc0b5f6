// An optimizer on one device: its parameters, their states where the placement has them, and the
// work of a step. What an update is, is the rule's business.
#pragma once

#include "swapline/optimizer/chunk_plan.h"
#include "swapline/optimizer/host_states.h"
#include "swapline/optimizer/optimizer_options.h"
#include "swapline/optimizer/param_list.h"
#include "swapline/optimizer/resident_states.h"
#include "swapline/optimizer/scratch.h"
#include "swapline/optimizer/step_counts.h"
#include "swapline/optimizer/swap_pipeline.h"
#include "swapline/optimizer/update_rule.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

class OptimizerEngine {
 public:
  // `context`: of `device`; may be null with StatePlacement::kDevice.
  OptimizerEngine(std::shared_ptr<SwapContext> context,
                  c10::Device device,
                  const OptimizerOptions& options,
                  std::unique_ptr<UpdateRule> rule);

  // Takes the parameters of a group that are on its device, without states.
  void add_params(size_t group, std::span<const at::Tensor> tensors);
  // Reserves and zeroes host states for the parameters that require a gradient and have none.
  void reserve_states();
  // Undoes the add_params() and reserve_states() since it had `num_params`.
  void truncate(size_t num_params);

  // A step in two: what can be refused is refused by begin_step(), which changes nothing that a
  // user sees. A failure of update() before the first update changes nothing either; a later one is
  // kept and thrown by every step from then on. Returns whether anything was updated.
  void begin_step(const GradScaling& scaling);
  bool update();
  // After an exception between the two, or of another engine. `failure`: not empty: thrown by every
  // step from then on.
  void abandon_step(const std::string& failure = "") noexcept;
  // Throws the failure of a step before, and what the rule does not allow.
  void check_usable(const GradScaling& scaling) const;

  void prefetch();
  void drain();

  ParamList& params() { return params_; }
  c10::Device device() const { return params_.device(); }
  SwapContext* context() const { return context_.get(); }
  StepCounts& steps() { return steps_; }
  // The states of a parameter by name, without `step`; empty before its first update. Requires:
  // drain() before.
  std::map<std::string, at::Tensor> state(size_t param);
  // Makes states of a parameter that has none yet, as its first update would have found them.
  void make_state(size_t param);
  // Zeroes the states of a parameter and hides them again. Requires: drain() before.
  void clear_state(size_t param);

  const UpdateRule& rule() const { return *rule_; }
  const ResidentStates& resident() const { return resident_; }
  SwapPipeline* pipeline() { return pipeline_ ? &*pipeline_ : nullptr; }
  const SwapPipeline* pipeline() const { return pipeline_ ? &*pipeline_ : nullptr; }
  size_t state_bytes() const { return (host_ ? host_->state_bytes() : 0) + resident_.bytes(); }
  size_t planned_scratch_bytes() const { return planned_scratch_bytes_; }

 private:
  // What a step does to a parameter.
  struct Work {
    at::Tensor grad;  // undefined: nothing
    at::Tensor step;
    int64_t num_updated = 0;  // elements whose update is enqueued
  };

  bool has_work(size_t param) const { return work_[param].grad.defined(); }
  // Has, or will have, its states in host memory.
  bool is_on_host(size_t param) const;
  bool is_small(size_t param) const;
  bool shall_map() const { return options_.virtual_optimizer_bytes > 0; }
  void add_host_states(const std::vector<size_t>& newcomers);
  void plan_chunks();
  SwapPipeline::Cut plan_cut(size_t slot_bytes, bool needs_scratch);
  void make_step_tensors();
  std::vector<size_t> chunks_where(const std::function<bool(size_t)>& is_wanted) const;
  // Parameters with work whose states are on the device.
  std::vector<size_t> resident_work() const;
  void update_resident(const std::vector<size_t>& wanted);
  void update_on_host(const std::vector<size_t>& chunks);
  void update_chunk(const Chunk& chunk, std::span<const at::Tensor> rows);
  void add_operands(size_t param,
                    at::Tensor tensor,
                    at::Tensor grad,
                    std::vector<at::Tensor> states);
  size_t scratch_bytes(size_t param) const;
  size_t scratch_bytes(const Chunk& chunk, const std::function<bool(size_t)>& is_wanted) const;
  size_t scratch_bytes_for(const std::vector<size_t>& chunks) const;
  size_t resident_scratch_bytes(const std::vector<size_t>& wanted) const;
  Scratch make_scratch(size_t bytes);
  void count(size_t param, int64_t num_elements);
  void end_step();
  void fail(const std::exception& error);
  std::string progress() const;

  std::shared_ptr<SwapContext> context_;
  OptimizerOptions options_;
  std::unique_ptr<UpdateRule> rule_;
  ParamList params_;
  std::vector<std::vector<at::ScalarType>> row_dtypes_;  // of each parameter's states
  StepCounts steps_;
  // Both or neither: with kSwap, and with kDevice where some states shall be mapped.
  std::optional<HostStates> host_;
  std::optional<SwapPipeline> pipeline_;
  ResidentStates resident_;
  size_t planned_scratch_bytes_ = 0;  // when every parameter of a chunk has a gradient
  bool has_warned_small_ = false;
  bool has_warned_short_ = false;
  std::optional<bool> can_map_;  // asked once there is host memory to ask about
  std::string failure_;

  // Only during a step:
  GradScaling scaling_;
  Scratch scratch_;
  std::vector<Work> work_;    // per parameter
  bool has_counted_ = false;  // on the device
  bool has_updated_ = false;
};

}  // namespace swapline::detail
