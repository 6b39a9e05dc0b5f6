// Construction, host states, and a step from its checks to its clean-up.
#include "swapline/optimizer/adam_impl.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace swapline {
namespace {

constexpr size_t kMostZerosBytes = size_t{32} << 20;

c10::Device device_of(const SwapContext* context,
                      const std::vector<AdamGroup>& groups,
                      StatePlacement placement) {
  if (context != nullptr) {
    return context->device();
  }
  TORCH_CHECK(placement == StatePlacement::kDevice,
              "StatePlacement::kSwap needs a SwapContext of the parameters' device");
  for (const auto& group : groups) {
    if (!group.params.empty() && group.params.front().defined()) {
      return group.params.front().device();
    }
  }
  return c10::Device(c10::kCPU);
}

}  // namespace

Adam::Impl::Impl(std::shared_ptr<SwapContext> the_context,
                 const std::vector<AdamGroup>& groups,
                 const AdamOptions& the_options)
    : context(std::move(the_context)),
      options(the_options),
      params(groups, device_of(context.get(), groups, options.placement)),
      device(params[0].tensor.device()),
      update(device, options.kernel) {
  check(options);
  for (size_t i = 0; i < params.size(); ++i) {
    dtypes.push_back(detail::state_dtypes(params[i].tensor.scalar_type(), options));
  }
  for (const auto& group : groups) {
    check(group.settings);
    update.check(group.settings);
    settings.push_back(group.settings);
    had_amsgrad.push_back(group.settings.amsgrad);
  }
  if (options.placement == StatePlacement::kDevice) {
    return;
  }
  host.emplace(context);
  pipeline.emplace(context, *host, options.num_slots);
  std::vector<size_t> newcomers;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].tensor.requires_grad()) {
      newcomers.push_back(i);
    }
  }
  add_host_states(newcomers);
}

void Adam::Impl::check_usable() const {
  TORCH_CHECK(failure.empty(), failure);
  for (size_t g = 0; g < settings.size(); ++g) {
    TORCH_CHECK(had_amsgrad[g] || !settings[g].amsgrad,
                "amsgrad of group ",
                g,
                " was switched on after the optimizer was made: there is no "
                "max_exp_avg_sq");
    check(settings[g]);
    update.check(settings[g]);
  }
}

// Reserves and zeroes host states for parameters that have none, and cuts all states anew.
void Adam::Impl::add_host_states(const std::vector<size_t>& newcomers) {
  std::vector<StateShape> shapes;
  size_t bytes = 0;
  for (const size_t i : newcomers) {
    const int64_t numel = params[i].tensor.numel();
    if (numel > 0 && !host->contains(static_cast<int64_t>(i))) {
      const auto moment_bytes = c10::elementSize(dtypes[i].moment);
      const auto master_bytes = dtypes[i].has_master ? c10::elementSize(dtypes[i].work) : 0;
      shapes.push_back(
          {static_cast<int64_t>(i), numel, moment_bytes, num_moments(i), master_bytes});
      bytes += shapes.back().bytes();
    }
  }
  if (shapes.empty()) {
    return;
  }
  pipeline->drain();
  const auto most_parts =
      static_cast<size_t>(options.swap_optimizer_times) * static_cast<size_t>(options.num_slots);
  host->add(shapes, std::clamp(bytes / most_parts, size_t{512}, kMostZerosBytes));
  plan_chunks();
}

void Adam::Impl::plan_chunks() {
  ArenaOptions arena;
  arena.times = options.swap_optimizer_times;
  arena.arena_bytes = options.swap_optimizer_arena_bytes;
  arena.num_slots = options.num_slots;
  arena.link_bytes_per_s = options.link_bytes_per_s;
  arena.copy_latency_s = options.copy_latency_s;
  for (const auto& block : host->blocks()) {
    for (const auto& [shape, offset] : block.placements) {
      const auto i = static_cast<size_t>(shape.param);
      const size_t scratch =
          update.scratch_bytes(dtypes[i], num_moments(i), settings[params[i].group]);
      arena.scratch_per_slot =
          std::max(arena.scratch_per_slot,
                   static_cast<double>(scratch) / static_cast<double>(shape.bytes_per_element()));
    }
  }
  const ArenaPlan plan = plan_arena(host->blocks(), host->state_bytes(), arena);
  pipeline->set_slot_bytes(plan.slot_bytes, options.swap_optimizer_fraction);
  planned_scratch_bytes = 0;
  for (const Chunk& chunk : pipeline->chunks()) {
    planned_scratch_bytes =
        std::max(planned_scratch_bytes, scratch_bytes(chunk, [](size_t) { return true; }));
  }
  if (plan.is_bound_raised && !has_warned_small) {
    has_warned_small = true;
    TORCH_WARN("swap_optimizer_times ",
               options.swap_optimizer_times,
               " leaves less device memory than ",
               options.num_slots,
               " chunks need: using ",
               static_cast<size_t>(options.num_slots) * plan.slot_bytes + planned_scratch_bytes,
               " bytes");
  }
}

void Adam::Impl::step() {
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  check_usable();
  has_updated = false;
  try {
    collect_work();
    if (host) {
      std::vector<size_t> with_grad;
      for (size_t i = 0; i < params.size(); ++i) {
        if (work[i].grad.defined()) {
          with_grad.push_back(i);
        }
      }
      add_host_states(with_grad);
    }
    make_step_tensors();
    host ? update_swapped() : update_resident();
  } catch (const std::exception& error) {
    fail(error);
    TORCH_CHECK(failure.empty(), failure);
    throw;
  }
  work.clear();
  scratch = {};
}

// Cleans up after an exception in a step, and says so for good if it came too late to be undone.
void Adam::Impl::fail(const std::exception& error) {
  update.clear();
  if (has_updated) {
    failure = "step() failed after " + progress() +
              "; the states of the last of them may be lost. Make a new "
              "optimizer from a checkpoint. "
              "The failure: " +
              error.what();
  }
  work.clear();
  scratch = {};
  if (pipeline) {
    try {
      pipeline->drain();
    } catch (const std::exception&) {
      // The device is lost; the first error says more.
    }
  }
}

}  // namespace swapline
