// Generator states and autocast flags, taken and put back.
#include "swapline/layer_input/replay_state.h"

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

namespace swapline {

ReplayState::ReplayState(c10::Device device, bool with_rng) {
  const auto note = [&](c10::Device each) {
    if (with_rng) {
      at::Generator generator = at::globalContext().defaultGenerator(each);
      const std::lock_guard lock(generator.mutex());
      generators_.emplace_back(generator, generator.get_state());
    }
    autocast_.push_back({each.type(),
                         at::autocast::is_autocast_enabled(each.type()),
                         at::autocast::get_autocast_dtype(each.type())});
  };
  note(c10::Device(c10::kCPU));
  if (device.type() != c10::kCPU) {
    note(device);
  }
  is_autocast_cache_enabled_ = at::autocast::is_autocast_cache_enabled();
}

void ReplayState::apply() const {
  for (const auto& [generator, state] : generators_) {
    at::Generator target = generator;
    const std::lock_guard lock(target.mutex());
    target.set_state(state);
  }
  for (const Autocast& autocast : autocast_) {
    at::autocast::set_autocast_enabled(autocast.type, autocast.is_enabled);
    at::autocast::set_autocast_dtype(autocast.type, autocast.dtype);
  }
  at::autocast::set_autocast_cache_enabled(is_autocast_cache_enabled_);
}

bool ReplayState::has_autocast() const {
  return std::any_of(autocast_.begin(), autocast_.end(), [](const Autocast& autocast) {
    return autocast.is_enabled;
  });
}

ReplayScope::ReplayScope() : was_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

ReplayScope::ReplayScope(const ReplayState& state, c10::Device device, bool with_rng)
    : former_(std::in_place, device, with_rng),
      was_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  state.apply();
  clears_cache_ = state.has_autocast();
  if (clears_cache_) {
    at::autocast::clear_cache();
  }
}

ReplayScope::~ReplayScope() {
  if (former_) {
    if (clears_cache_) {
      at::autocast::clear_cache();
    }
    former_->apply();
  }
  at::autocast::set_autocast_cache_enabled(was_cache_enabled_);
}

}  // namespace swapline
