// What a layer reads besides its arguments: random generators and autocast. Recompute puts it back
// to what it was in forward. Inside layer_input/ only.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace swapline {

class ReplayState {
 public:
  // The state now, for the calling thread, on the CPU and on `device`. `with_rng`: generators too.
  ReplayState(c10::Device device, bool with_rng);
  // Makes it the present state.
  void apply() const;
  bool has_autocast() const;

 private:
  struct Autocast {
    c10::DeviceType type;
    bool is_enabled;
    at::ScalarType dtype;
  };
  std::vector<std::pair<at::Generator, at::Tensor>> generators_;
  std::vector<Autocast> autocast_;
  bool is_autocast_cache_enabled_ = true;
};

// A layer's run, and the former state back at the end. Autocast's cache of casts is kept apart: a
// cast cached without grad would cut a parameter off in the run with grad, and one cached by a
// graph that is gone would fail.
class ReplayScope {
 public:
  // The first run, without grad: no casts are cached. Generators move on.
  ReplayScope();
  // The second run: `state` in place, and a cache of its own.
  ReplayScope(const ReplayState& state, c10::Device device, bool with_rng);
  ~ReplayScope();
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  std::optional<ReplayState> former_;
  bool was_cache_enabled_;
  bool clears_cache_ = false;
};

}  // namespace swapline
