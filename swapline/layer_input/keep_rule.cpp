// keep_last kAuto keeps one input at most: a second one would be there when the first backward
// comes to the peak of memory, where nothing is left under it.
#include "swapline/layer_input/keep_rule.h"

#include <utility>

namespace swapline {

KeepRule::KeepRule(const LayerInputOptions& options)
    : num_layers_(options.num_layers),
      keep_last_(options.keep_last),
      min_bytes_(options.min_bytes),
      max_host_bytes_(options.max_host_bytes) {}

bool KeepRule::keeps(InputHandle& handle) {
  const bool is_over_budget = max_host_bytes_ != 0 && host_bytes_ + handle.bytes > max_host_bytes_;
  if (is_over_budget || handle.bytes < min_bytes_) {
    return true;
  }
  return keep_last_ == kAuto ? is_last_kept_by_auto(handle) : is_among_last(handle, keep_last_);
}

bool KeepRule::is_among_last(const InputHandle& handle, int64_t num_last) const {
  return num_layers_ > 0 && handle.index >= num_layers_ - num_last;
}

bool KeepRule::is_last_kept_by_auto(InputHandle& handle) {
  if (has_hints_ || !does_last_come_next_ || num_kept_last_ > 0 || !is_among_last(handle, 1)) {
    return false;
  }
  handle.is_kept_last = true;
  ++num_kept_last_;
  return true;
}

void KeepRule::note_host_bytes(InputHandle& handle) {
  handle.host_bytes = handle.bytes;
  host_bytes_ += handle.bytes;
}

void KeepRule::note_taken(InputHandle& handle, bool comes_next) {
  if (!handle.was_taken && is_among_last(handle, 1)) {
    does_last_come_next_ = comes_next;
  }
  handle.was_taken = true;
  num_kept_last_ -= std::exchange(handle.is_kept_last, false) ? 1 : 0;
}

void KeepRule::forget(InputHandle& handle) {
  num_kept_last_ -= std::exchange(handle.is_kept_last, false) ? 1 : 0;
  host_bytes_ -= std::exchange(handle.host_bytes, 0);
}

}  // namespace swapline
