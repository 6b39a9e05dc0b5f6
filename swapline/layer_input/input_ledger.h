// The inputs of a model's layers that wait for their backward: where each is, how it leaves the
// device and comes back, and the counts of it. Inside layer_input/ only.
#pragma once

#include "swapline/layer_input/input_counts.h"
#include "swapline/layer_input/input_handle.h"
#include "swapline/layer_input/keep_rule.h"
#include "swapline/layer_input/layer_inputs.h"
#include "swapline/layer_input/outgoing_inputs.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace swapline {

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
  // The layer of an input just entered runs on while backwards are taken beside it, until
  // end_layer(), the next enter(), or its own backward.
  void begin_layer(const HandlePtr& handle);
  void end_layer(InputHandle& handle);

  // LayerInputs' hints.
  void begin_microbatch(int64_t id);
  void prefetch_microbatch(int64_t id);
  // The last input of the pass. May be null.
  HandlePtr last_of_microbatch(int64_t id);

  // Its backward is about to run: the input, ready for the compute stream; the next ones are on
  // their way. The caller passes the tensor on and lets go of it before finish().
  at::Tensor take(InputHandle& handle);
  // The same long before its backward, which still takes it: nothing is prefetched.
  at::Tensor take_ahead(InputHandle& handle);
  // What OutgoingInputs wants to know of that backward.
  bool recomputed(const InputHandle& handle);
  void note_memory();
  void end_samples();
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
  // It is in use by a backward, or that is over.
  bool is_in_use(const InputHandle& handle);

  // Its backward has run. `runs_again`: the graph is kept, the input must stay to be had.
  void finish(InputHandle& handle, bool runs_again);
  // Its backward has thrown and may be tried again.
  void give_up(InputHandle& handle) noexcept;

 private:
  friend struct InputHandle;

  bool is_layer_running() const;
  void place(InputHandle& handle, const at::Tensor& hidden_states);
  void start_swap_out(InputHandle& handle, const at::Tensor& hidden_states);
  void let_go(InputHandle& handle);
  void check_usable(const InputHandle& handle) const;
  void turn_to_backward(const InputHandle& handle);
  void fetch(InputHandle& handle);
  void prefetch(const InputHandle& handle);
  bool prefetch_one(InputHandle& handle);
  void recall(InputHandle& handle);
  void start_swap_in(InputHandle& handle);
  at::Tensor tensor_of(const InputHandle& handle) const;
  void forget(InputHandle& handle);

  std::shared_ptr<SwapContext> context_;  // null: nothing is swapped
  LayerInputOptions options_;
  // Recursive: dropping a handle under the lock runs its destructor, which takes it too.
  std::recursive_mutex mutex_;
  InputCounts counts_;
  KeepRule keep_rule_;
  OutgoingInputs outgoing_;
  std::weak_ptr<InputHandle> last_entered_;
  std::weak_ptr<InputHandle> running_layer_;  // begin_layer()'s
  std::optional<int64_t> microbatch_;
  std::map<int64_t, std::weak_ptr<InputHandle>> last_of_microbatch_;
  bool has_entered_ = false;
  bool is_in_backward_ = false;
  bool is_running_again_ = false;
};

}  // namespace swapline
