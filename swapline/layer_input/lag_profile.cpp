// Heights are upper bounds in forward (the allocator's peak so far) and lower bounds in backward
// (samples), so that what is allowed errs on the low side.
#include "swapline/layer_input/lag_profile.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

namespace swapline {

LagProfile::LagProfile(c10::Device device)
    : allocator_(dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()))),
      device_(device),
      phase_(allocator_ != nullptr ? Phase::kForward : Phase::kOff) {}

LagProfile::Heights LagProfile::heights() const {
  const c10::CachingDeviceAllocator::DeviceStats stats =
      allocator_->getDeviceStats(device_.index());
  const auto& allocated = stats.allocated_bytes.front();
  return {allocated.current, allocated.peak, stats.reserved_bytes.front().current};
}

bool LagProfile::are_covered(c10::ArrayRef<int64_t> sizes) const {
  return sizes.size() == sizes_.size() &&
         std::equal(sizes.begin(), sizes.end(), sizes_.begin(), std::less_equal<>());
}

void LagProfile::enter(bool begins, int64_t index, c10::ArrayRef<int64_t> sizes) {
  if (phase_ == Phase::kOff) {
    return;
  }
  if (begins) {
    begin();
  } else {
    note_forward(last_index_);
  }
  last_index_ = index;
  if (!are_covered(sizes)) {
    sizes_.assign(sizes.begin(), sizes.end());
    phase_ = Phase::kForward;
    forget_forward();
    most_ = std::numeric_limits<size_t>::max();
    most_at_begin_ = 0;
    ceiling_ = 0;
    has_full_sample_ = false;
    is_recording_ = begins;
  }
  is_full_size_ = is_full_size_ || sizes.equals(sizes_);
}

void LagProfile::forget_forward() {
  forward_.clear();
  recompute_ = 0;
  is_recording_ = false;
}

void LagProfile::suspend() {
  is_suspended_ = true;
  if (phase_ == Phase::kForward) {
    forget_forward();
  }
}

void LagProfile::begin() {
  if (phase_ == Phase::kForward) {
    // The pass before this one has shown forward's heights, if it was seen as a whole.
    if (is_recording_ && recompute_ > 0) {
      phase_ = Phase::kBackward;
    } else {
      forget_forward();
      is_recording_ = true;
    }
  }
  if (gives_back_) {
    const c10::DeviceGuard on_device(device_);
    allocator_->emptyCache({0, 0});
    gives_back_ = false;
  }
  used_ = 0;
  hinted_ = 0;
  is_suspended_ = false;
  is_sampling_ = false;
  is_full_size_ = false;
  at_begin_ = heights();
  const int64_t known = std::max(strict_reserved_, checked_reserved_);
  strict_reserved_ += std::max<int64_t>(0, at_begin_.reserved - known);
}

void LagProfile::note_forward(int64_t index) {
  if (phase_ != Phase::kForward || !is_recording_ || index < 0) {
    return;
  }
  const auto place = static_cast<size_t>(index);
  forward_.resize(std::max(forward_.size(), place + 1), 0);
  forward_[place] = std::max(forward_[place], heights().peak - at_begin_.now);
}

void LagProfile::turn() {
  note_forward(last_index_);
}

void LagProfile::recomputed() {
  if (phase_ == Phase::kForward && is_recording_) {
    recompute_ = heights().peak - at_begin_.now;
  } else if (phase_ == Phase::kLearned && !is_suspended_) {
    check_lag();
  }
  const bool is_new = !has_full_sample_ || at_begin_.now > most_at_begin_;
  is_sampling_ = !is_suspended_ && (phase_ == Phase::kBackward ||
                                    (phase_ == Phase::kLearned && is_full_size_ && is_new));
  sample_ = 0;
}

void LagProfile::check_lag() {
  const Heights here = heights();
  const bool is_higher = here.peak > at_begin_.peak && here.peak - at_begin_.now > backward_;
  checked_reserved_ = here.reserved;
  if (is_higher || here.reserved > strict_reserved_) {
    most_ = used_ / 2;
    gives_back_ = here.reserved > strict_reserved_;
  }
}

void LagProfile::sample() {
  if (is_sampling_) {
    sample_ = std::max(sample_, heights().now - at_begin_.now);
  }
}

void LagProfile::sampled() {
  if (!std::exchange(is_sampling_, false)) {
    return;
  }
  const bool is_first = phase_ == Phase::kBackward;
  const bool is_first_full = is_full_size_ && !std::exchange(has_full_sample_, is_full_size_);
  backward_ = is_first || is_first_full ? sample_ : std::min(backward_, sample_);
  ceiling_ = std::max(ceiling_, at_begin_.now + sample_);
  most_at_begin_ = std::max(most_at_begin_, at_begin_.now);
  if (is_first) {
    phase_ = Phase::kLearned;
    strict_reserved_ = heights().reserved;
    checked_reserved_ = strict_reserved_;
  }
}

size_t LagProfile::allowance_over(int64_t height) const {
  if (phase_ != Phase::kLearned || is_suspended_) {
    return 0;
  }
  const int64_t allowed = std::min(backward_, ceiling_ - at_begin_.now) - height - hinted_;
  return allowed > 0 ? std::min(most_, static_cast<size_t>(allowed)) : 0;
}

size_t LagProfile::forward_allowance(int64_t index) const {
  const auto place = static_cast<size_t>(index);
  // A place that no pass has shown has the height of the peak.
  const bool is_known = place < forward_.size() && forward_[place] > 0;
  return is_known ? allowance_over(forward_[place]) : 0;
}

size_t LagProfile::turn_allowance() const {
  return allowance_over(recompute_);
}

size_t LagProfile::cost_of(size_t bytes) {
  constexpr size_t kUnit = 512;  // what caching allocators round to
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

}  // namespace swapline
