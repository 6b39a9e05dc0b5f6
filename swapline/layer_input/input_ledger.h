// The inputs of a model's layers that wait for their backward, and the rules by which they leave
// the device and come back. Inside layer_input/ only.
#pragma once

#include "swapline/layer_input/lag_profile.h"
#include "swapline/layer_input/layer_inputs.h"
#include "swapline/swap/swap_group.h"

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <c10/core/TensorImpl.h>

namespace swapline {

class InputLedger;

// One layer's input of one forward pass, from there to the backward that uses it. Owned by the
// autograd node of that backward.
class InputHandle {
 public:
  explicit InputHandle(std::shared_ptr<InputLedger> ledger) : ledger_(std::move(ledger)) {}
  ~InputHandle();
  InputHandle(const InputHandle&) = delete;
  InputHandle& operator=(const InputHandle&) = delete;

  InputLedger& ledger() const { return *ledger_; }

 private:
  friend class InputLedger;

  std::shared_ptr<InputLedger> ledger_;
  std::optional<SwapGroup> group_;  // empty: `kept_` holds the input on the device
  at::Tensor kept_;
  Release release_ = Release::kDrop;
  size_t bytes_ = 0;
  int64_t index_ = 0;  // of the layer in its pass
  // The input before this one in the same pass: the next one that backward wants.
  std::weak_ptr<InputHandle> before_;
  c10::VariableVersion version_;  // of the caller's tensor
  uint32_t version_at_entry_ = 0;
  bool is_counted_ = false;  // in resident_inputs
  size_t host_bytes_ = 0;    // counted against max_host_bytes
  bool is_finished_ = false;
};

using HandlePtr = std::shared_ptr<InputHandle>;

class InputLedger : public std::enable_shared_from_this<InputLedger> {
 public:
  InputLedger(std::shared_ptr<SwapContext> context, LayerInputOptions options);

  const std::shared_ptr<SwapContext>& context() const { return context_; }
  const LayerInputOptions& options() const { return options_; }
  LayerInputStats stats();
  void reset_stats();

  // A layer is about to run forward: starts the copy out of its input, then lets go of former ones.
  // `before`: the handle of the layer before it in this pass, if any. kInPlace: someone else has
  // saved the tensor; then an input that is not swapped is not held either.
  HandlePtr enter(const at::Tensor& hidden_states,
                  const HandlePtr& before,
                  Release release = Release::kDrop);
  // The handle that enter() made last, while no backward came since. May be null.
  HandlePtr last_entered();

  // LayerInputs' hints.
  void begin_microbatch(int64_t id);
  void prefetch_microbatch(int64_t id);

  // Its backward is about to run: the input, ready for the compute stream; the next ones are on
  // their way. The caller passes the tensor on and lets go of it before finish().
  at::Tensor take(InputHandle& handle);
  // Its layer has run again and goes backward now: memory peaks in the first of these after a
  // forward, so what was allowed to lag is let go of.
  // True: this backward is to be sampled, by note_memory() after each of its nodes.
  bool recomputed(const InputHandle& handle);
  void note_memory();
  void end_samples();
  // Layers inside a layer that runs again: what was learned of the outer ones tells nothing.
  void set_running_again(bool value);
  // On the device and usable by the compute stream, whatever its state; nothing is prefetched.
  void bring_back(InputHandle& handle);
  HandlePtr before(const InputHandle& handle);
  // Lets go of it now if it is still on its way out.
  void let_go_of(InputHandle& handle);
  bool is_swapped(const InputHandle& handle);
  Residency residency(const InputHandle& handle);
  // Nobody but the ledger can see its tensor any more.
  bool is_abandoned(const InputHandle& handle);

  // Its backward has run. `runs_again`: the graph is kept, the input must stay to be had.
  void finish(InputHandle& handle, bool runs_again);

 private:
  friend class InputHandle;

  void place(InputHandle& handle, const at::Tensor& hidden_states);
  bool is_kept_by_rule(const InputHandle& handle) const;
  void start_swap_out(InputHandle& handle, const at::Tensor& hidden_states);
  size_t num_allowed_out(const InputHandle& running);
  void let_go_of_former(const InputHandle& running);
  void let_go(InputHandle& handle);
  void turn_to_backward(const InputHandle& handle);
  void let_go_at_turn(const InputHandle& handle, size_t allowance);
  bool is_wanted_soon(const InputHandle& handle, const InputHandle& other) const;
  void fetch(InputHandle& handle);
  void prefetch(const InputHandle& handle);
  bool prefetch_one(InputHandle& handle);
  void recall(InputHandle& handle);
  void start_swap_in(InputHandle& handle);
  void count(InputHandle& handle, bool is_resident);
  void note_running(const InputHandle& handle);
  void forget(InputHandle& handle);

  std::shared_ptr<SwapContext> context_;  // null: nothing is swapped
  LayerInputOptions options_;
  // Recursive: dropping a handle under the lock runs its destructor, which takes it too.
  std::recursive_mutex mutex_;
  LayerInputStats stats_;
  std::deque<std::weak_ptr<InputHandle>> swapping_out_;  // oldest first
  std::weak_ptr<InputHandle> last_entered_;
  std::optional<int64_t> microbatch_;
  std::map<int64_t, std::weak_ptr<InputHandle>> last_of_microbatch_;
  size_t host_bytes_ = 0;
  bool has_entered_ = false;
  bool is_in_backward_ = false;
  bool is_turning_ = false;  // the first backward after a forward has not gone backward yet
  bool is_running_again_ = false;
  LagProfile lag_;
};

}  // namespace swapline
