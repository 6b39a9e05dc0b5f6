// Counts where the option gives one; bytes under the learned peak where it is kAuto.
#include "swapline/layer_input/outgoing_inputs.h"

#include <utility>
#include <vector>

namespace swapline {

OutgoingInputs::OutgoingInputs(const LayerInputOptions& options, LagProfile lag, LetGo let_go)
    : max_swapping_out_(options.max_swapping_out),
      prefetch_(options.prefetch),
      let_go_(std::move(let_go)),
      lag_(std::move(lag)) {}

void OutgoingInputs::note_layer(bool begins_pass, int64_t index, c10::ArrayRef<int64_t> sizes) {
  is_turning_ = false;
  lag_.enter(begins_pass, index, sizes);
}

void OutgoingInputs::add(const HandlePtr& handle) {
  inputs_.emplace_back(handle);
}

size_t OutgoingInputs::num_strict() const {
  return max_swapping_out_ == kAuto ? 1 : static_cast<size_t>(max_swapping_out_);
}

// How many inputs may be on their way out while `running`'s layer runs: strict's one and what fits
// under the peak besides.
size_t OutgoingInputs::num_allowed(const InputHandle& running) {
  size_t num_allowed = num_strict();
  if (max_swapping_out_ != kAuto) {
    return num_allowed;
  }
  const size_t allowance = lag_.forward_allowance(running.index);
  size_t bytes = 0;
  for (size_t i = 1; i < inputs_.size(); ++i) {
    const HandlePtr older = inputs_[inputs_.size() - 1 - i].lock();
    bytes += older ? LagProfile::cost_of(older->bytes) : 0;
    if (bytes > allowance) {
      break;
    }
    lag_.note_used(bytes);
    ++num_allowed;
  }
  return num_allowed;
}

void OutgoingInputs::drop_those_gone() {
  std::erase_if(inputs_, [](const std::weak_ptr<InputHandle>& each) {
    const HandlePtr handle = each.lock();
    return !handle || !handle->is_on_its_way_out();
  });
}

void OutgoingInputs::let_go_of_former(const InputHandle& running) {
  drop_those_gone();
  const size_t most = num_allowed(running);
  while (!inputs_.empty()) {
    if (const HandlePtr oldest = inputs_.front().lock()) {
      const bool goes_for_free = !lag_.is_learning() && oldest->group->is_swap_out_done();
      if (inputs_.size() <= most && !goes_for_free) {
        return;
      }
      let_go_(*oldest);
    }
    inputs_.pop_front();
  }
}

void OutgoingInputs::turn(const InputHandle& handle) {
  lag_.turn();
  is_turning_ = handle.tells_recomputed;
  let_go_beyond(handle, is_turning_ ? lag_.turn_allowance() : 0);
}

bool OutgoingInputs::recomputed(const InputHandle& handle) {
  if (!is_turning_) {
    return false;
  }
  is_turning_ = false;
  lag_.recomputed();
  let_go_beyond(handle, 0);
  return lag_.wants_samples();
}

void OutgoingInputs::go_on(const InputHandle& handle) {
  if (std::exchange(is_turning_, false)) {
    lag_.suspend();
    let_go_beyond(handle, 0);
  }
}

void OutgoingInputs::run_beside(const InputHandle& handle) {
  lag_.suspend();
  size_t num_staying = 0;
  let_go_unless(handle, [&](const InputHandle&) { return ++num_staying <= num_strict(); });
}

// The newest stay as far as `allowance` goes: the copies of the oldest end first.
void OutgoingInputs::let_go_beyond(const InputHandle& handle, size_t allowance) {
  size_t bytes = 0;
  let_go_unless(handle, [&](const InputHandle& other) {
    bytes += LagProfile::cost_of(other.bytes);
    return bytes <= allowance;
  });
}

// `stays` is asked about each, the newest first, that neither runs nor is wanted by the backward of
// `handle` and its prefetch.
template <typename Stays>
void OutgoingInputs::let_go_unless(const InputHandle& handle, const Stays& stays) {
  drop_those_gone();
  std::deque<std::weak_ptr<InputHandle>> staying;
  std::vector<HandlePtr> going;  // newest first
  for (auto each = inputs_.rbegin(); each != inputs_.rend(); ++each) {
    HandlePtr other = each->lock();
    if (other && (other->is_running || is_wanted_soon(handle, *other) || stays(*other))) {
      staying.push_front(*each);
    } else if (other) {
      going.push_back(std::move(other));
    }
  }
  inputs_ = std::move(staying);
  for (auto oldest = going.rbegin(); oldest != going.rend(); ++oldest) {
    let_go_(**oldest);
  }
}

bool OutgoingInputs::is_wanted_soon(const InputHandle& handle, const InputHandle& other) const {
  if (&handle == &other) {
    return true;
  }
  HandlePtr next = handle.before.lock();
  for (int64_t depth = 0; next && depth < prefetch_; ++depth) {
    if (next.get() == &other) {
      return true;
    }
    next = next->before.lock();
  }
  return false;
}

}  // namespace swapline
