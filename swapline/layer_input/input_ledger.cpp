// How an input leaves, comes back and ends, and what is counted on the way.
#include "swapline/layer_input/input_ledger.h"

#include <utility>

#include <ATen/ops/detach.h>
#include <c10/util/Exception.h>

namespace swapline {
namespace {

void check_options(const LayerInputOptions& options) {
  const auto not_negative = [](int64_t value, const char* name) {
    TORCH_CHECK(value >= 0, "LayerInputOptions::", name, " is ", value, "; it must be 0 or more");
  };
  const auto not_negative_or_auto = [](int64_t value, const char* name) {
    TORCH_CHECK(value >= 0 || value == kAuto,
                "LayerInputOptions::",
                name,
                " is ",
                value,
                "; it must be 0 or more, or kAuto");
  };
  not_negative(options.num_layers, "num_layers");
  not_negative(options.prefetch, "prefetch");
  not_negative_or_auto(options.keep_last, "keep_last");
  not_negative_or_auto(options.max_swapping_out, "max_swapping_out");
}

LagProfile lag_of(const std::shared_ptr<SwapContext>& context, const LayerInputOptions& options) {
  const bool is_learned = options.enabled && options.max_swapping_out == kAuto;
  return is_learned && context ? LagProfile(context->device()) : LagProfile();
}

}  // namespace

InputHandle::InputHandle(std::shared_ptr<InputLedger> ledger) : ledger(std::move(ledger)) {}

InputHandle::~InputHandle() {
  ledger->forget(*this);
}

InputLedger::InputLedger(std::shared_ptr<SwapContext> context, LayerInputOptions options)
    : context_(std::move(context)),
      options_(std::move(options)),
      keep_rule_(options_),
      outgoing_(
          options_, lag_of(context_, options_), [this](InputHandle& handle) { let_go(handle); }) {
  TORCH_CHECK(context_ || !options_.enabled, "LayerInputs: to swap it needs a SwapContext");
  check_options(options_);
}

LayerInputStats InputLedger::stats() {
  const std::lock_guard lock(mutex_);
  LayerInputStats stats = counts_.stats;
  if (context_) {
    stats.exposed_out_ms = context_->exposed_ms(Wait::kReleaseAfterSwapOut);
    stats.exposed_in_ms = context_->exposed_ms(Wait::kUseAfterSwapIn);
  }
  return stats;
}

void InputLedger::reset_stats() {
  const std::lock_guard lock(mutex_);
  counts_.reset();
  if (context_) {
    context_->reset_exposed();
  }
}

HandlePtr InputLedger::last_entered() {
  const std::lock_guard lock(mutex_);
  return is_in_backward_ ? HandlePtr() : last_entered_.lock();
}

HandlePtr InputLedger::enter(const at::Tensor& hidden_states,
                             const HandlePtr& before,
                             Release release) {
  const std::lock_guard lock(mutex_);
  if (const HandlePtr former = running_layer_.lock()) {
    end_layer(*former);
  }
  const bool begins_pass = is_in_backward_ || !has_entered_;
  has_entered_ = true;
  is_in_backward_ = false;
  if (is_running_again_) {
    outgoing_.withdraw();
  }
  if (context_) {
    context_->settle_done();
  }
  auto handle = std::make_shared<InputHandle>(shared_from_this());
  handle->index = before ? before->index + 1 : 0;
  handle->before = before;
  handle->release = release;
  if (!hidden_states.is_inference()) {
    handle->version = hidden_states.unsafeGetTensorImpl()->version_counter();
    handle->version_at_entry = handle->version.current_version();
  }
  outgoing_.note_layer(begins_pass, handle->index, hidden_states.sizes());
  place(*handle, hidden_states);
  outgoing_.let_go_of_former(*handle);
  if (handle->group) {
    outgoing_.add(handle);
  }
  last_entered_ = handle;
  if (microbatch_ && !is_running_again_) {
    last_of_microbatch_[*microbatch_] = handle;
  }
  counts_.note_peak(*handle);
  return handle;
}

void InputLedger::begin_layer(const HandlePtr& handle) {
  const std::lock_guard lock(mutex_);
  running_layer_ = handle;
  counts_.set_running(*handle, true);
}

void InputLedger::end_layer(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  if (running_layer_.lock().get() == &handle) {
    running_layer_.reset();
    counts_.set_running(handle, false);
  }
}

bool InputLedger::is_layer_running() const {
  return !running_layer_.expired();
}

// Starts the swap-out, or keeps the input on the device and counts why.
void InputLedger::place(InputHandle& handle, const at::Tensor& hidden_states) {
  const bool keeps = handle.release == Release::kDrop;
  const SwapCheck check = is_valid_for_swap(hidden_states, options_.custom_check);
  if (!check || (context_ && hidden_states.device() != context_->device())) {
    counts_.stats.num_refused += options_.enabled ? 1 : 0;
    handle.kept = keeps ? hidden_states.detach() : at::Tensor();
    return;
  }
  handle.bytes = hidden_states.storage().nbytes();
  counts_.set_resident(handle, true);
  if (options_.enabled && !keep_rule_.keeps(handle)) {
    start_swap_out(handle, hidden_states);
  } else {
    counts_.stats.num_kept_on_device += options_.enabled ? 1 : 0;
    if (context_) {
      context_->note_device_memory(hidden_states.storage(), MemoryKind::kLayerInputs);
    }
  }
  if (!handle.group && keeps) {
    handle.kept = hidden_states.detach();
  }
}

void InputLedger::start_swap_out(InputHandle& handle, const at::Tensor& hidden_states) {
  SwapGroup group(*context_,
                  {hidden_states},
                  {options_.module_tag + " " + std::to_string(handle.index), handle.release});
  if (!group.swap_out()) {
    ++counts_.stats.num_host_failures;
    return;
  }
  handle.group = std::move(group);
  keep_rule_.note_host_bytes(handle);
  ++counts_.stats.num_swapped_out;
  counts_.stats.bytes_out += handle.bytes;
}

void InputLedger::let_go(InputHandle& handle) {
  counts_.stats.bytes_not_freed += handle.group->release_device_storage();
  counts_.set_resident(handle, false);
}

void InputLedger::check_usable(const InputHandle& handle) const {
  TORCH_CHECK(!handle.is_finished,
              "recompute of '",
              options_.module_tag,
              " ",
              handle.index,
              "': its backward has run already; call the first one with retain_graph=True");
  TORCH_CHECK(
      !handle.version.enabled() || handle.version.current_version() == handle.version_at_entry,
      "recompute of '",
      options_.module_tag,
      " ",
      handle.index,
      "': hidden_states was modified by an in-place operation after the layer's forward");
}

at::Tensor InputLedger::take(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  check_usable(handle);
  end_layer(handle);
  keep_rule_.note_taken(handle, last_entered_.lock().get() == &handle);
  if (is_layer_running()) {
    outgoing_.run_beside(handle);
  } else if (!is_in_backward_) {
    turn_to_backward(handle);
  } else {
    outgoing_.go_on(handle);
  }
  outgoing_.end_samples();
  if (context_) {
    context_->settle_done();
  }
  fetch(handle);
  prefetch(handle);
  counts_.set_running(handle, true);
  counts_.note_peak(handle);
  return tensor_of(handle);
}

at::Tensor InputLedger::take_ahead(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  check_usable(handle);
  outgoing_.run_beside(handle);
  fetch(handle);
  counts_.note_peak(handle);
  return tensor_of(handle);
}

void InputLedger::turn_to_backward(const InputHandle& handle) {
  is_in_backward_ = true;
  outgoing_.turn(handle);
  if (context_) {
    context_->settle_all();
  }
}

bool InputLedger::recomputed(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return outgoing_.recomputed(handle);
}

void InputLedger::note_memory() {
  const std::lock_guard lock(mutex_);
  outgoing_.note_memory();
}

void InputLedger::end_samples() {
  const std::lock_guard lock(mutex_);
  outgoing_.end_samples();
}

void InputLedger::set_running_again(bool value) {
  const std::lock_guard lock(mutex_);
  is_running_again_ = value;
}

at::Tensor InputLedger::tensor_of(const InputHandle& handle) const {
  return handle.group ? handle.group->tensors().front() : handle.kept;
}

// Makes the input usable by the compute stream.
void InputLedger::fetch(InputHandle& handle) {
  if (!handle.group) {
    return;
  }
  SwapGroup& group = *handle.group;
  if (group.residency() == Residency::kSwappingOut) {
    recall(handle);
  } else if (group.residency() == Residency::kHost) {
    start_swap_in(handle);
    ++counts_.stats.num_prefetch_misses;
  } else if (group.residency() == Residency::kSwappingIn) {
    ++counts_.stats.num_prefetch_hits;
  }
  if (group.residency() == Residency::kSwappingIn) {
    group.wait_swap_in();
  }
}

void InputLedger::prefetch(const InputHandle& handle) {
  HandlePtr next = handle.before.lock();
  size_t bytes = 0;
  for (int64_t depth = 0; next && depth < options_.prefetch; ++depth) {
    bytes += next->bytes;
    if (options_.prefetch_bytes != 0 && bytes > options_.prefetch_bytes) {
      return;
    }
    if (!prefetch_one(*next)) {
      return;
    }
    next = next->before.lock();
  }
}

bool InputLedger::prefetch_one(InputHandle& handle) {
  if (handle.is_on_its_way_out()) {
    recall(handle);
  } else if (handle.group && handle.group->residency() == Residency::kHost) {
    try {
      start_swap_in(handle);
    } catch (const std::exception&) {
      // Its own backward asks again, and tells if it still fails.
      ++counts_.stats.num_failed_prefetches;
      return false;
    }
  }
  return true;
}

void InputLedger::begin_microbatch(int64_t id) {
  const std::lock_guard lock(mutex_);
  microbatch_ = id;
  keep_rule_.note_hints();
  outgoing_.withdraw();
  std::erase_if(last_of_microbatch_, [](const auto& each) { return each.second.expired(); });
}

HandlePtr InputLedger::last_of_microbatch(int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = last_of_microbatch_.find(id);
  return found == last_of_microbatch_.end() ? nullptr : found->second.lock();
}

void InputLedger::prefetch_microbatch(int64_t id) {
  const std::lock_guard lock(mutex_);
  const HandlePtr handle = last_of_microbatch(id);
  if (handle && handle->group && handle->group->residency() != Residency::kDevice) {
    if (!is_in_backward_) {
      outgoing_.note_hinted(*handle);
    }
    prefetch_one(*handle);
  }
}

void InputLedger::bring_back(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  fetch(handle);
}

HandlePtr InputLedger::before(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return handle.before.lock();
}

void InputLedger::let_go_of(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  if (handle.is_on_its_way_out()) {
    let_go(handle);
  }
}

bool InputLedger::is_swapped(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return handle.group.has_value();
}

Residency InputLedger::residency(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return is_swapped(handle) ? handle.group->residency() : Residency::kDevice;
}

bool InputLedger::is_abandoned(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return !is_swapped(handle) || !handle.group->is_held_elsewhere();
}

bool InputLedger::is_in_use(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return handle.is_finished || (handle.was_taken && handle.is_running);
}

void InputLedger::recall(InputHandle& handle) {
  handle.group->recall();
  ++counts_.stats.num_recalls;
}

void InputLedger::start_swap_in(InputHandle& handle) {
  handle.group->swap_in();
  counts_.set_resident(handle, true);
  ++counts_.stats.num_swapped_in;
  counts_.stats.bytes_in += handle.bytes;
}

void InputLedger::finish(InputHandle& handle, bool runs_again) {
  const std::lock_guard lock(mutex_);
  counts_.set_running(handle, false);
  const bool is_ours = handle.release == Release::kDrop;
  if (is_ours && handle.group && handle.group->residency() == Residency::kDevice) {
    // Also orders the compute stream behind a copy out that a recall left in flight.
    handle.group->discard_device_copy();
    counts_.set_resident(handle, false);
  }
  if (runs_again) {
    return;
  }
  forget(handle);
  handle.kept.reset();
  handle.group.reset();
  handle.is_finished = true;
}

void InputLedger::give_up(InputHandle& handle) noexcept {
  try {
    finish(handle, /*runs_again=*/true);
  } catch (...) {  // The error that got us here matters more; the input stays where it is.
  }
}

void InputLedger::forget(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  counts_.set_resident(handle, false);
  counts_.set_running(handle, false);
  keep_rule_.forget(handle);
}

}  // namespace swapline
