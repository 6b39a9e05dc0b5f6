// The inputs that are on their way out, and how long each may stay on the device behind its layer.
// Inside layer_input/ only.
#pragma once

#include "swapline/layer_input/input_handle.h"
#include "swapline/layer_input/lag_profile.h"
#include "swapline/layer_input/layer_inputs.h"

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>

#include <c10/util/ArrayRef.h>

namespace swapline {

// The host's time is no measure, as it may be many layers ahead of the device: what has to go goes
// behind a wait of the compute stream, which costs nothing when its copy is done. Called under the
// ledger's lock.
class OutgoingInputs {
 public:
  using LetGo = std::function<void(InputHandle&)>;

  // `lag`: allows nothing unless max_swapping_out is kAuto. `let_go` does it.
  OutgoingInputs(const LayerInputOptions& options, LagProfile lag, LetGo let_go);

  // Forward, in this order: a layer is about to run, its copy out is started; former ones go.
  void note_layer(bool begins_pass, int64_t index, c10::ArrayRef<int64_t> sizes);
  void let_go_of_former(const InputHandle& running);
  void add(const HandlePtr& handle);

  // The first backward after a forward takes `handle`. Its layer runs again first, and then goes
  // backward: memory peaks there, so by then what this backward and its prefetch do not want is
  // gone.
  void turn(const InputHandle& handle);
  // Its layer has run again and goes backward now. True: that backward is to be sampled, by
  // note_memory() after each of its nodes, then end_samples().
  bool recomputed(const InputHandle& handle);
  // A later one takes `handle`. When nothing was told of the first, what had to go then goes now.
  void go_on(const InputHandle& handle);
  void note_memory() { lag_.sample(); }
  void end_samples() { lag_.sampled(); }

  // The layer of `handle` runs while another runs forward, or long before its backward: what was
  // learned of memory does not hold, so this pass is strict from here on.
  void run_beside(const InputHandle& handle);
  // An input that a hint keeps on the device, or brings back, during forward.
  void note_hinted(const InputHandle& handle) { lag_.note_hinted(handle.bytes); }
  // What was learned tells nothing: layers run inside a layer that runs again, or several passes
  // are in flight, and each turn from forward to backward has other heights around it.
  void withdraw() { lag_.withdraw(); }

 private:
  size_t num_allowed(const InputHandle& running);
  size_t num_strict() const;
  bool is_wanted_soon(const InputHandle& handle, const InputHandle& other) const;
  template <typename Stays>
  void let_go_unless(const InputHandle& handle, const Stays& stays);
  void let_go_beyond(const InputHandle& handle, size_t allowance);
  void drop_those_gone();

  int64_t max_swapping_out_;
  int64_t prefetch_;
  LetGo let_go_;
  LagProfile lag_;
  std::deque<std::weak_ptr<InputHandle>> inputs_;  // oldest first
  bool is_turning_ = false;  // the first backward after a forward has not gone backward yet
};

}  // namespace swapline
