// One step: collect and check the work, then let the placement's states pass by the kernel.
#include "swapline/optimizer/adam_impl.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace swapline {

using detail::AdamParam;
using detail::flat_part;

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
      device(params[0].tensor.device()) {
  check(options);
  for (const auto& group : groups) {
    check(group.settings);
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
                " was switched on after the optimizer was made: there is no max_exp_avg_sq");
    check(settings[g]);
  }
}

// Reserves and zeroes host states for parameters that have none, and cuts all states anew.
void Adam::Impl::add_host_states(const std::vector<size_t>& newcomers) {
  std::vector<StateShape> shapes;
  size_t bytes = 0;
  for (const size_t i : newcomers) {
    const at::Tensor& tensor = params[i].tensor;
    if (tensor.numel() > 0 && !host->contains(static_cast<int64_t>(i))) {
      shapes.push_back(
          {static_cast<int64_t>(i), tensor.numel(), tensor.dtype().itemsize(), num_states(i)});
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
  ArenaOptions arena;
  arena.times = options.swap_optimizer_times;
  arena.arena_bytes = options.swap_optimizer_arena_bytes;
  arena.num_slots = options.num_slots;
  arena.link_bytes_per_s = options.link_bytes_per_s;
  arena.copy_latency_s = options.copy_latency_s;
  const ArenaPlan plan = plan_arena(host->blocks(), host->state_bytes(), arena);
  pipeline->set_slot_bytes(plan.slot_bytes);
  if (plan.is_bound_raised && !has_warned_small) {
    has_warned_small = true;
    TORCH_WARN("swap_optimizer_times ",
               options.swap_optimizer_times,
               " leaves less device memory than ",
               options.num_slots,
               " chunks need: using ",
               static_cast<size_t>(options.num_slots) * plan.slot_bytes,
               " bytes");
  }
}

void Adam::Impl::collect_work() {
  work.assign(params.size(), {});
  for (size_t i = 0; i < params.size(); ++i) {
    work[i].grad = params.checked_grad(i);
  }
}

// One scalar on the device for each number of steps that occurs: usually one in all.
void Adam::Impl::make_step_tensors() {
  std::map<float, at::Tensor> by_value;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!work[i].grad.defined() || work[i].grad.numel() == 0) {
      continue;
    }
    const float value = params.step(i) + 1;
    at::Tensor& scalar = by_value[value];
    if (!scalar.defined()) {
      scalar = at::full({}, value, at::TensorOptions().dtype(at::kFloat).device(device));
    }
    work[i].step = scalar;
  }
}

std::vector<size_t> Adam::Impl::chunks_where(const std::function<bool(size_t)>& is_wanted) const {
  std::vector<size_t> numbers;
  const auto chunks = pipeline->chunks();
  for (size_t k = 0; k < chunks.size(); ++k) {
    if (std::any_of(chunks[k].pieces.begin(), chunks[k].pieces.end(), [&](const Piece& piece) {
          return is_wanted(static_cast<size_t>(piece.param));
        })) {
      numbers.push_back(k);
    }
  }
  return numbers;
}

// Notes that the update of some elements is enqueued; the last of a parameter counts as its step.
void Adam::Impl::count(size_t param, int64_t num_elements) {
  AdamParam& entry = params[param];
  work[param].num_updated += num_elements;
  if (work[param].num_updated == entry.tensor.numel()) {
    params.step(param) += 1;
    entry.has_state = true;
    // The update went through views that autograd does not know.
    entry.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void Adam::Impl::update_resident() {
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& tensor = params[i].tensor;
    if (work[i].grad.defined() && tensor.numel() > 0) {
      const auto& states = resident.of(i, tensor, num_states(i));
      if (context) {
        for (const auto& state : states) {
          context->note_device_memory(state.storage(), MemoryKind::kOptimizerStates);
        }
      }
      kernel.add(params[i].group, {tensor, work[i].grad, states, work[i].step});
    }
  }
  has_updated = true;
  kernel.launch(settings);
  for (size_t i = 0; i < params.size(); ++i) {
    if (work[i].grad.defined()) {
      count(i, params[i].tensor.numel());
    }
  }
}

void Adam::Impl::update_swapped() {
  const auto chunks = chunks_where([&](size_t param) { return work[param].grad.defined(); });
  pipeline->run(chunks,
                [&](const Chunk& chunk, const at::Tensor& slot) { update_chunk(chunk, slot); });
  for (size_t i = 0; i < params.size(); ++i) {
    if (work[i].grad.defined() && params[i].tensor.numel() == 0) {
      count(i, 0);
    }
  }
  const auto shortages = pipeline->slots().num_shortages();
  if (shortages > 0 && !has_warned_short) {
    has_warned_short = true;
    TORCH_WARN("the device has no room for ", options.num_slots, " chunks: step() is slower");
  }
}

void Adam::Impl::update_chunk(const Chunk& chunk, const at::Tensor& slot) {
  std::map<at::ScalarType, at::Tensor> typed_slot;
  for (const Piece& piece : chunk.pieces) {
    const auto i = static_cast<size_t>(piece.param);
    if (!work[i].grad.defined()) {
      continue;
    }
    const at::Tensor& tensor = params[i].tensor;
    at::Tensor& typed = typed_slot[tensor.scalar_type()];
    if (!typed.defined()) {
      typed =
          slot.narrow(0, 0, static_cast<int64_t>(chunk.slot_bytes())).view(tensor.scalar_type());
    }
    detail::AdamOperands operands;
    operands.param = flat_part(tensor, piece.first_element, piece.num_elements);
    operands.grad = flat_part(work[i].grad, piece.first_element, piece.num_elements);
    operands.step = work[i].step;
    for (int state = 0; state < num_states(i); ++state) {
      const size_t offset = static_cast<size_t>(state) * chunk.bytes + piece.offset_bytes;
      operands.states.push_back(flat_part(
          typed, static_cast<int64_t>(offset / tensor.dtype().itemsize()), piece.num_elements));
    }
    kernel.add(params[i].group, std::move(operands));
  }
  has_updated = true;  // also when the launch throws: how far it came is not known
  kernel.launch(settings);
  for (const Piece& piece : chunk.pieces) {
    if (work[static_cast<size_t>(piece.param)].grad.defined()) {
      count(static_cast<size_t>(piece.param), piece.num_elements);
    }
  }
}

std::string Adam::Impl::progress() const {
  size_t num_whole = 0;
  size_t num_all = 0;
  std::string partly;
  for (size_t i = 0; i < work.size(); ++i) {
    if (!work[i].grad.defined()) {
      continue;
    }
    ++num_all;
    const int64_t numel = params[i].tensor.numel();
    if (numel > 0 && work[i].num_updated == numel) {
      ++num_whole;
    } else if (work[i].num_updated > 0) {
      partly += (partly.empty() ? "; in part: " : ", ") + params[i].name;
    }
  }
  return std::to_string(num_whole) + " of " + std::to_string(num_all) +
         " parameters had been updated" + partly;
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
    work.clear();
    TORCH_CHECK(failure.empty(), failure);
    throw;
  }
  work.clear();
}

// Cleans up after an exception in a step, and says so for good if it came too late to be undone.
void Adam::Impl::fail(const std::exception& error) {
  kernel.clear();
  if (has_updated) {
    failure =
        "step() failed after " + progress() +
        "; the states of the last of them may be lost. Make a new optimizer from a checkpoint. "
        "The failure: " +
        error.what();
  }
  if (pipeline) {
    try {
      pipeline->drain();
    } catch (const std::exception&) {
      // The device is lost; the first error says more.
    }
  }
}

}  // namespace swapline
