// Parameters and states: how they come, where they lie, and what is left of a step that failed.
#include "swapline/optimizer/engine.h"

#include "swapline/optimizer/mapped_memory.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace swapline::detail {
namespace {

constexpr size_t kMostZerosBytes = size_t{32} << 20;

}  // namespace

OptimizerEngine::OptimizerEngine(std::shared_ptr<SwapContext> context,
                                 c10::Device device,
                                 const OptimizerOptions& options,
                                 std::unique_ptr<UpdateRule> rule)
    : context_(std::move(context)),
      options_(options),
      rule_(std::move(rule)),
      params_(device),
      steps_(device) {
  if (options_.placement == StatePlacement::kSwap || shall_map()) {
    host_.emplace(context_);
    pipeline_.emplace(context_, *host_, options_.num_slots);
  }
}

void OptimizerEngine::add_params(size_t group, std::span<const at::Tensor> tensors) {
  const size_t num_before = params_.size();
  params_.add(group, tensors);
  try {
    for (size_t i = num_before; i < params_.size(); ++i) {
      rule_->add_param(params_[i]);
    }
  } catch (...) {
    params_.truncate(num_before);
    rule_->truncate(num_before);
    throw;
  }
  for (size_t i = num_before; i < params_.size(); ++i) {
    auto& dtypes = row_dtypes_.emplace_back();
    for (const StateRow& row : rule_->rows(i)) {
      dtypes.push_back(row.dtype);
    }
  }
  steps_.add(params_.size() - num_before);
}

void OptimizerEngine::reserve_states() {
  if (!host_) {
    return;
  }
  std::vector<size_t> newcomers;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].tensor.requires_grad()) {
      newcomers.push_back(i);
    }
  }
  add_host_states(newcomers);
}

void OptimizerEngine::truncate(size_t num_params) {
  if (num_params == params_.size()) {
    return;
  }
  if (host_ && host_->truncate(static_cast<int64_t>(num_params))) {
    plan_chunks();
  }
  params_.truncate(num_params);
  rule_->truncate(num_params);
  row_dtypes_.resize(num_params);
  steps_.truncate(num_params);
}

void OptimizerEngine::add_host_states(const std::vector<size_t>& newcomers) {
  std::vector<StateShape> shapes;
  size_t bytes = 0;
  for (const size_t i : newcomers) {
    if (params_[i].tensor.numel() == 0 || host_->contains(static_cast<int64_t>(i))) {
      continue;
    }
    // On the device goes what no mapped memory is left for; a part of the last one may.
    const bool has_room = options_.placement == StatePlacement::kSwap ||
                          host_->state_bytes() + bytes < options_.virtual_optimizer_bytes;
    if (has_room && !is_small(i) && !resident_.contains(i)) {
      shapes.push_back(rule_->shape(i));
      shapes.back().param = static_cast<int64_t>(i);
      bytes += shapes.back().bytes();
    }
  }
  if (shapes.empty()) {
    return;
  }
  pipeline_->drain();
  const auto most_parts =
      static_cast<size_t>(options_.swap_optimizer_times) * static_cast<size_t>(options_.num_slots);
  host_->add(shapes, std::clamp(bytes / most_parts, size_t{512}, kMostZerosBytes));
  plan_chunks();
}

void OptimizerEngine::plan_chunks() {
  ArenaOptions arena;
  arena.times = options_.swap_optimizer_times;
  arena.arena_bytes = options_.swap_optimizer_arena_bytes;
  arena.num_slots = options_.num_slots;
  arena.link_bytes_per_s = options_.link_bytes_per_s;
  arena.copy_latency_s = options_.copy_latency_s;
  for (const auto& block : host_->blocks()) {
    for (const auto& [shape, offset] : block.placements) {
      // What a second unit adds grows with a slot, the rest does not.
      const Part unit = {static_cast<size_t>(shape.param), shape.split_elements};
      const Part units[] = {unit, unit};
      const size_t for_one = rule_->scratch_bytes({units, 1});
      const size_t added = rule_->scratch_bytes(units) - for_one;
      arena.scratch_per_slot =
          std::max(arena.scratch_per_slot,
                   static_cast<double>(added) / (static_cast<double>(shape.bytes_per_element()) *
                                                 static_cast<double>(unit.num_elements)));
      arena.scratch_bytes = std::max(arena.scratch_bytes, for_one - added);
    }
  }
  const ArenaPlan plan = plan_arena(host_->blocks(), host_->state_bytes(), arena);
  pipeline_->cut(plan_cut(plan.slot_bytes, arena.scratch_per_slot > 0));
  planned_scratch_bytes_ = 0;
  for (const Chunk& chunk : pipeline_->chunks()) {
    planned_scratch_bytes_ =
        std::max(planned_scratch_bytes_, scratch_bytes(chunk, [](size_t) { return true; }));
  }
  if (plan.is_bound_raised && pipeline_->arena_bytes() > 0 && !has_warned_small_) {
    has_warned_small_ = true;
    TORCH_WARN("swap_optimizer_times ",
               options_.swap_optimizer_times,
               " leaves less device memory than ",
               options_.num_slots,
               " chunks need: using ",
               pipeline_->arena_bytes() + planned_scratch_bytes_,
               " bytes");
  }
}

SwapPipeline::Cut OptimizerEngine::plan_cut(size_t slot_bytes, bool needs_scratch) {
  SwapPipeline::Cut cut;
  cut.slot_bytes = slot_bytes;
  if (shall_map() && !can_map_ && !host_->blocks().empty()) {
    const std::string why = why_not_mapped(host_->memory(0).data(), device());
    can_map_ = why.empty();
    if (!*can_map_) {
      TORCH_WARN("virtual_optimizer_bytes: kernels of ",
                 device(),
                 " cannot address host memory, so these states are swapped. ",
                 why);
    }
  }
  const bool maps = can_map_.value_or(false);
  cut.mapped_bytes = maps ? options_.virtual_optimizer_bytes : 0;
  cut.joins_mapped = !needs_scratch;  // which is bounded, by bounding chunks
  if (options_.placement == StatePlacement::kSwap) {
    cut.kept_share = 1 - options_.swap_optimizer_fraction;
  } else if (maps) {
    cut.kept_share = 1;
  } else if (host_->state_bytes() > options_.virtual_optimizer_bytes) {
    cut.kept_share = 1 - static_cast<double>(options_.virtual_optimizer_bytes) /
                             static_cast<double>(host_->state_bytes());
  }
  return cut;
}

bool OptimizerEngine::is_on_host(size_t param) const {
  return (options_.placement == StatePlacement::kSwap && !is_small(param)) ||
         (host_ && host_->contains(static_cast<int64_t>(param)));
}

bool OptimizerEngine::is_small(size_t param) const {
  return options_.swap_optimizer_min_bytes > 0 &&
         rule_->shape(param).bytes() < options_.swap_optimizer_min_bytes;
}

std::map<std::string, at::Tensor> OptimizerEngine::state(size_t param) {
  std::map<std::string, at::Tensor> states;
  if (!params_[param].has_state) {
    return states;
  }
  const at::Tensor& tensor = params_[param].tensor;
  const bool on_host = is_on_host(param);
  const auto rows = rule_->rows(param);
  for (size_t i = 0; i < rows.size(); ++i) {
    at::Tensor& state = states[rows[i].name];
    if (tensor.numel() == 0) {
      const auto options = tensor.options().requires_grad(false).dtype(rows[i].dtype);
      state = at::empty_strided(
          tensor.sizes(), tensor.strides(), on_host ? options.device(at::kCPU) : options);
    } else if (on_host) {
      state = host_->tensor(static_cast<int64_t>(param),
                            static_cast<int>(i),
                            tensor.sizes(),
                            tensor.strides(),
                            rows[i].dtype);
    } else {
      state = resident_.of(param, tensor, row_dtypes_[param])[i];
    }
  }
  return states;
}

void OptimizerEngine::make_state(size_t param) {
  if (host_) {
    add_host_states({param});
  }
  params_[param].has_state = true;
}

void OptimizerEngine::clear_state(size_t param) {
  for (auto& [name, state] : state(param)) {
    state.zero_();
  }
  steps_.value(param) = 0;
  params_[param].has_state = false;
}

void OptimizerEngine::check_usable(const GradScaling& scaling) const {
  TORCH_CHECK(failure_.empty(), failure_);
  rule_->check(scaling);
}

void OptimizerEngine::prefetch() {
  if (pipeline_) {
    pipeline_->prefetch(
        chunks_where([&](size_t param) { return params_[param].tensor.requires_grad(); }));
  }
}

void OptimizerEngine::drain() {
  if (pipeline_) {
    pipeline_->drain();
  }
  steps_.to_host();
}

void OptimizerEngine::end_step() {
  work_.clear();
  scratch_ = {};
  scaling_ = {};
}

void OptimizerEngine::abandon_step(const std::string& failure) noexcept {
  if (failure_.empty()) {
    failure_ = failure;
  }
  rule_->clear();
  end_step();
  try {
    if (std::exchange(has_counted_, false) && !has_updated_) {
      steps_.uncount(at::ones({}, at::TensorOptions().dtype(at::kFloat).device(device())));
    }
    if (pipeline_) {
      pipeline_->drain();
    }
  } catch (const std::exception&) {
    // The device is lost; the first error says more.
  }
}

// Says it for good if it came too late to be undone.
void OptimizerEngine::fail(const std::exception& error) {
  if (has_updated_) {
    failure_ = "step() failed after " + progress() +
               "; the states of the last of them may be lost. Make a new "
               "optimizer from a checkpoint. "
               "The failure: " +
               error.what();
  }
  abandon_step();
}

std::string OptimizerEngine::progress() const {
  size_t num_whole = 0;
  size_t num_all = 0;
  std::string partly;
  for (size_t i = 0; i < work_.size(); ++i) {
    if (!has_work(i)) {
      continue;
    }
    ++num_all;
    const int64_t numel = params_[i].tensor.numel();
    if (numel > 0 && work_[i].num_updated == numel) {
      ++num_whole;
    } else if (work_[i].num_updated > 0) {
      partly += (partly.empty() ? "; in part: " : ", ") + params_[i].name;
    }
  }
  return std::to_string(num_whole) + " of " + std::to_string(num_all) +
         " parameters had been updated" + partly;
}

}  // namespace swapline::detail
