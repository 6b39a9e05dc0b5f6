// When inputs leave, when they are let go, when they come back.
#include "swapline/layer_input/input_ledger.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/detach.h>
#include <c10/util/Exception.h>

namespace swapline {
namespace {

void check_options(const LayerInputOptions& options) {
  const auto not_negative = [](int64_t value, const char* name) {
    TORCH_CHECK(value >= 0, "LayerInputOptions::", name, " is ", value, "; it must be 0 or more");
  };
  not_negative(options.num_layers, "num_layers");
  not_negative(options.keep_last, "keep_last");
  not_negative(options.prefetch, "prefetch");
  TORCH_CHECK(options.max_swapping_out >= 0 || options.max_swapping_out == kAuto,
              "LayerInputOptions::max_swapping_out is ",
              options.max_swapping_out,
              "; it must be 0 or more, or kAuto");
}

}  // namespace

InputHandle::~InputHandle() {
  ledger_->forget(*this);
}

InputLedger::InputLedger(std::shared_ptr<SwapContext> context, LayerInputOptions options)
    : context_(std::move(context)), options_(std::move(options)) {
  TORCH_CHECK(context_ || !options_.enabled, "LayerInputs: to swap it needs a SwapContext");
  check_options(options_);
  if (options_.enabled && options_.max_swapping_out == kAuto) {
    lag_ = LagProfile(context_->device());
  }
}

LayerInputStats InputLedger::stats() {
  const std::lock_guard lock(mutex_);
  LayerInputStats stats = stats_;
  if (context_) {
    stats.exposed_out_ms = context_->exposed_ms(Wait::kReleaseAfterSwapOut);
    stats.exposed_in_ms = context_->exposed_ms(Wait::kUseAfterSwapIn);
  }
  return stats;
}

void InputLedger::reset_stats() {
  const std::lock_guard lock(mutex_);
  const int64_t resident = stats_.resident_inputs;
  stats_ = {};
  stats_.resident_inputs = resident;
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
  const bool begins_pass = is_in_backward_ || !has_entered_;
  has_entered_ = true;
  is_in_backward_ = false;
  is_turning_ = false;
  if (is_running_again_) {
    lag_.withdraw();
  }
  if (context_) {
    context_->settle_done();
  }
  auto handle = std::make_shared<InputHandle>(shared_from_this());
  handle->index_ = before ? before->index_ + 1 : 0;
  handle->before_ = before;
  handle->release_ = release;
  if (!hidden_states.is_inference()) {
    handle->version_ = hidden_states.unsafeGetTensorImpl()->version_counter();
    handle->version_at_entry_ = handle->version_.current_version();
  }
  lag_.enter(begins_pass, handle->index_, hidden_states.sizes());
  place(*handle, hidden_states);
  let_go_of_former(*handle);
  if (handle->group_) {
    swapping_out_.emplace_back(handle);
  }
  last_entered_ = handle;
  if (microbatch_) {
    last_of_microbatch_[*microbatch_] = handle;
  }
  note_running(*handle);
  return handle;
}

// Starts the swap-out, or keeps the input on the device and counts why.
void InputLedger::place(InputHandle& handle, const at::Tensor& hidden_states) {
  const bool keeps = handle.release_ == Release::kDrop;
  const SwapCheck check = is_valid_for_swap(hidden_states, options_.custom_check);
  if (!check || (context_ && hidden_states.device() != context_->device())) {
    stats_.num_refused += options_.enabled ? 1 : 0;
    handle.kept_ = keeps ? hidden_states.detach() : at::Tensor();
    return;
  }
  handle.bytes_ = hidden_states.storage().nbytes();
  count(handle, true);
  if (options_.enabled && !is_kept_by_rule(handle)) {
    start_swap_out(handle, hidden_states);
  } else {
    stats_.num_kept_on_device += options_.enabled ? 1 : 0;
    if (context_) {
      context_->note_device_memory(hidden_states.storage(), MemoryKind::kLayerInputs);
    }
  }
  if (!handle.group_ && keeps) {
    handle.kept_ = hidden_states.detach();
  }
}

bool InputLedger::is_kept_by_rule(const InputHandle& handle) const {
  const bool is_last =
      options_.num_layers > 0 && handle.index_ >= options_.num_layers - options_.keep_last;
  const bool is_over_limit =
      options_.max_host_bytes != 0 && host_bytes_ + handle.bytes_ > options_.max_host_bytes;
  return is_last || is_over_limit || handle.bytes_ < options_.min_bytes;
}

void InputLedger::start_swap_out(InputHandle& handle, const at::Tensor& hidden_states) {
  SwapGroup group(*context_,
                  {hidden_states},
                  {options_.module_tag + " " + std::to_string(handle.index_), handle.release_});
  if (!group.swap_out()) {
    ++stats_.num_host_failures;
    return;
  }
  handle.group_ = std::move(group);
  handle.host_bytes_ = handle.bytes_;
  host_bytes_ += handle.bytes_;
  ++stats_.num_swapped_out;
  stats_.bytes_out += handle.bytes_;
}

// How many inputs may be on their way out while `running`'s layer runs: strict's one and what fits
// under the peak besides.
size_t InputLedger::num_allowed_out(const InputHandle& running) {
  if (options_.max_swapping_out != kAuto) {
    return static_cast<size_t>(options_.max_swapping_out);
  }
  const size_t allowance = lag_.forward_allowance(running.index_);
  size_t num_allowed = 1;
  size_t bytes = 0;
  for (size_t i = 1; i < swapping_out_.size(); ++i) {
    const HandlePtr older = swapping_out_[swapping_out_.size() - 1 - i].lock();
    bytes += older ? LagProfile::cost_of(older->bytes_) : 0;
    if (bytes > allowance) {
      break;
    }
    lag_.note_used(bytes);
    ++num_allowed;
  }
  return num_allowed;
}

// What is done goes for free; what is not goes behind a wait of the compute stream, as far as the
// rule demands. The host's time is no measure: it may be many layers ahead of the device.
void InputLedger::let_go_of_former(const InputHandle& running) {
  const size_t most = num_allowed_out(running);
  while (!swapping_out_.empty()) {
    const HandlePtr oldest = swapping_out_.front().lock();
    const bool is_out =
        !oldest || !oldest->group_ || oldest->group_->residency() != Residency::kSwappingOut;
    if (!is_out) {
      const bool goes_for_free = !lag_.is_learning() && oldest->group_->is_swap_out_done();
      if (swapping_out_.size() <= most && !goes_for_free) {
        return;
      }
      let_go(*oldest);
    }
    swapping_out_.pop_front();
  }
}

void InputLedger::let_go(InputHandle& handle) {
  stats_.bytes_not_freed += handle.group_->release_device_storage();
  count(handle, false);
}

at::Tensor InputLedger::take(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!handle.is_finished_,
              "recompute of '",
              options_.module_tag,
              " ",
              handle.index_,
              "': its backward has run already; call the first one with retain_graph=True");
  TORCH_CHECK(
      !handle.version_.enabled() || handle.version_.current_version() == handle.version_at_entry_,
      "recompute of '",
      options_.module_tag,
      " ",
      handle.index_,
      "': hidden_states was modified by an in-place operation after the layer's forward");
  if (!is_in_backward_) {
    turn_to_backward(handle);
  } else if (context_) {
    context_->settle_done();
  }
  fetch(handle);
  prefetch(handle);
  note_running(handle);
  return handle.group_ ? handle.group_->tensors().front() : handle.kept_;
}

// The first backward after a forward. Its layer runs again first, and then goes backward: memory
// peaks there, so by then what this backward and the prefetch do not want is gone.
void InputLedger::turn_to_backward(const InputHandle& handle) {
  is_in_backward_ = true;
  is_turning_ = true;
  lag_.turn();
  let_go_at_turn(handle, lag_.turn_allowance());
  if (context_) {
    context_->settle_all();
  }
}

bool InputLedger::recomputed(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  if (!is_turning_) {
    return false;
  }
  is_turning_ = false;
  lag_.recomputed();
  let_go_at_turn(handle, 0);
  return lag_.wants_samples();
}

// The newest stay as far as `allowance` goes: the copies of the oldest end first.
void InputLedger::let_go_at_turn(const InputHandle& handle, size_t allowance) {
  std::deque<std::weak_ptr<InputHandle>> staying;
  std::vector<HandlePtr> going;  // newest first
  size_t bytes = 0;
  for (auto each = swapping_out_.rbegin(); each != swapping_out_.rend(); ++each) {
    const HandlePtr other = each->lock();
    if (!other || !other->group_ || other->group_->residency() != Residency::kSwappingOut) {
      continue;
    }
    const bool is_wanted = is_wanted_soon(handle, *other);
    bytes += is_wanted ? 0 : LagProfile::cost_of(other->bytes_);
    if (is_wanted || bytes <= allowance) {
      staying.push_front(*each);
    } else {
      going.push_back(other);
    }
  }
  swapping_out_ = std::move(staying);
  for (auto oldest = going.rbegin(); oldest != going.rend(); ++oldest) {
    let_go(**oldest);
  }
}

void InputLedger::note_memory() {
  const std::lock_guard lock(mutex_);
  lag_.sample();
}

void InputLedger::end_samples() {
  const std::lock_guard lock(mutex_);
  lag_.sampled();
}

void InputLedger::set_running_again(bool value) {
  const std::lock_guard lock(mutex_);
  is_running_again_ = value;
}

bool InputLedger::is_wanted_soon(const InputHandle& handle, const InputHandle& other) const {
  if (&handle == &other) {
    return true;
  }
  HandlePtr next = handle.before_.lock();
  for (int64_t depth = 0; next && depth < options_.prefetch; ++depth) {
    if (next.get() == &other) {
      return true;
    }
    next = next->before_.lock();
  }
  return false;
}

// Makes the input usable by the compute stream.
void InputLedger::fetch(InputHandle& handle) {
  if (!handle.group_) {
    return;
  }
  SwapGroup& group = *handle.group_;
  if (group.residency() == Residency::kSwappingOut) {
    recall(handle);
  } else if (group.residency() == Residency::kHost) {
    start_swap_in(handle);
    ++stats_.num_prefetch_misses;
  } else if (group.residency() == Residency::kSwappingIn) {
    ++stats_.num_prefetch_hits;
  }
  if (group.residency() == Residency::kSwappingIn) {
    group.wait_swap_in();
  }
}

void InputLedger::prefetch(const InputHandle& handle) {
  HandlePtr next = handle.before_.lock();
  size_t bytes = 0;
  for (int64_t depth = 0; next && depth < options_.prefetch; ++depth) {
    bytes += next->bytes_;
    if (options_.prefetch_bytes != 0 && bytes > options_.prefetch_bytes) {
      return;
    }
    if (!prefetch_one(*next)) {
      return;
    }
    next = next->before_.lock();
  }
}

bool InputLedger::prefetch_one(InputHandle& handle) {
  if (handle.group_ && handle.group_->residency() == Residency::kSwappingOut) {
    recall(handle);
  } else if (handle.group_ && handle.group_->residency() == Residency::kHost) {
    try {
      start_swap_in(handle);
    } catch (const std::exception&) {
      // Its own backward asks again, and tells if it still fails.
      ++stats_.num_failed_prefetches;
      return false;
    }
  }
  return true;
}

void InputLedger::begin_microbatch(int64_t id) {
  const std::lock_guard lock(mutex_);
  microbatch_ = id;
  std::erase_if(last_of_microbatch_, [](const auto& each) { return each.second.expired(); });
}

void InputLedger::prefetch_microbatch(int64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = last_of_microbatch_.find(id);
  const HandlePtr handle = found == last_of_microbatch_.end() ? nullptr : found->second.lock();
  if (handle) {
    prefetch_one(*handle);
  }
}

void InputLedger::bring_back(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  fetch(handle);
}

HandlePtr InputLedger::before(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return handle.before_.lock();
}

void InputLedger::let_go_of(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  if (is_swapped(handle) && handle.group_->residency() == Residency::kSwappingOut) {
    let_go(handle);
  }
}

bool InputLedger::is_swapped(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return handle.group_.has_value();
}

Residency InputLedger::residency(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return is_swapped(handle) ? handle.group_->residency() : Residency::kDevice;
}

bool InputLedger::is_abandoned(const InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  return !is_swapped(handle) || !handle.group_->is_held_elsewhere();
}

void InputLedger::recall(InputHandle& handle) {
  handle.group_->recall();
  ++stats_.num_recalls;
}

void InputLedger::start_swap_in(InputHandle& handle) {
  handle.group_->swap_in();
  count(handle, true);
  ++stats_.num_swapped_in;
  stats_.bytes_in += handle.bytes_;
}

void InputLedger::finish(InputHandle& handle, bool runs_again) {
  const std::lock_guard lock(mutex_);
  const bool is_ours = handle.release_ == Release::kDrop;
  if (is_ours && handle.group_ && handle.group_->residency() == Residency::kDevice) {
    // Also orders the compute stream behind a copy out that a recall left in flight.
    handle.group_->discard_device_copy();
    count(handle, false);
  }
  if (runs_again) {
    return;
  }
  forget(handle);
  handle.kept_.reset();
  handle.group_.reset();
  handle.is_finished_ = true;
}

void InputLedger::count(InputHandle& handle, bool is_resident) {
  if (handle.is_counted_ != is_resident) {
    handle.is_counted_ = is_resident;
    stats_.resident_inputs += is_resident ? 1 : -1;
  }
}

void InputLedger::note_running(const InputHandle& handle) {
  const int64_t beyond_own = stats_.resident_inputs - (handle.is_counted_ ? 1 : 0);
  stats_.peak_resident_inputs = std::max(stats_.peak_resident_inputs, beyond_own);
}

void InputLedger::forget(InputHandle& handle) {
  const std::lock_guard lock(mutex_);
  count(handle, false);
  host_bytes_ -= std::exchange(handle.host_bytes_, 0);
}

}  // namespace swapline
