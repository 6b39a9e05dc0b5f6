// Layer-input swap for frameworks that do their own recompute and their own saving of inputs: five
// wrappers around the functions that such a framework has for its layers.
//
// The framework keeps the tensor; its memory is taken out from under it after the first forward and
// put back before the layer runs again. An input is known by its storage, never by its place in a
// queue, so any order of micro-batches is right. While it is out nobody may read it: do not keep
// views of hidden_states, or refuse such layers with LayerInputOptions::custom_check.
//
// A forward without grad is taken for the first run of a recompute when its input requires grad.
// Call a layer for evaluation with an input that does not, or with swap_this_tensor = false.
//
// An input that the framework lets go of without a backward is noticed at the next call, and its
// host memory given back.
#pragma once

#include "swapline/export.h"
#include "swapline/layer_input/layer_inputs.h"
#include "swapline/swap/swap_group.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

// The layers of one model on one device that swap together; the RFC's manager. Make one for each
// model, and one for each module_tag. Not thread-safe, but forward and backward may run on
// different threads, one at a time.
class SWAPLINE_API SwapLayerInputs {
 public:
  // Of `options`, recompute's own (preserve_rng_state) have no effect, max_swapping_out kAuto is 1,
  // and keep_last kAuto is 1 until begin_microbatch() is called; it needs num_layers. Throws
  // c10::Error naming the option that is out of range.
  SwapLayerInputs(std::shared_ptr<SwapContext> context, LayerInputOptions options = {});
  // Brings back what is still out.
  ~SwapLayerInputs();
  SwapLayerInputs(const SwapLayerInputs&) = delete;
  SwapLayerInputs& operator=(const SwapLayerInputs&) = delete;

  // Hints, as in LayerInputs.
  void begin_microbatch(int64_t id);
  void prefetch(int64_t microbatch);

  LayerInputStats stats() const;
  // A number for one more layer.
  int64_t add_layer();
  // Forgets inputs that nobody else holds any more.
  void sweep();

 private:
  friend class LayerSwapper;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One layer's part of it; the RFC's swap_manager.
class SWAPLINE_API LayerSwapper {
 public:
  LayerSwapper(std::shared_ptr<SwapLayerInputs> all, int64_t index);

  int64_t index() const { return index_; }  // in the order in which layers were made
  // Where this layer's inputs that wait for their backward are, the oldest first.
  std::vector<Residency> states() const;

  // What the wrappers do.

  // The layer is about to run a forward that will be run again: starts the copy out. False: the
  // input stays.
  bool begin_forward(const at::Tensor& hidden_states) const;
  // That forward has thrown: as if it had not been.
  void cancel_forward(const at::Tensor& hidden_states) const;
  // That forward has run: lets go of the input, behind a wait for its own copy.
  void end_forward(const at::Tensor& hidden_states) const;
  // The layer is about to run again, or backward: the compute stream waits for the input here, and
  // the one before it is on its way. Nothing happens when hidden_states is not out.
  void begin_backward(const at::Tensor& hidden_states) const;
  // That is over: the compute stream waits for the one before, whose recompute may start outside
  // any wrapper.
  void end_backward() const;

 private:
  std::shared_ptr<SwapLayerInputs> all_;
  int64_t index_;
};

// What a layer of the framework has to carry; derive from it.
struct SwapLayer {
  bool is_mtp = false;  // a multi-token-prediction module: it runs more than once in a pass
  std::shared_ptr<LayerSwapper> swapper;  // null: the layer runs as it was
};

// The arguments of a layer's call that the wrappers look at; the framework's own go into `others`.
struct LayerCall {
  at::Tensor hidden_states = {};
  std::vector<at::Tensor> others = {};
  bool swap_this_tensor = true;  // false: this input stays
  bool checkpoint = false;       // forward-backward overlap: the framework runs this layer again
};

// The layer that runs backward: what forward-backward overlap hands over for it.
struct LayerGraph {
  SwapLayer* layer = nullptr;
  at::Tensor layer_input = {};  // the tensor that was its hidden_states
};

using LayerInit = std::function<void(SwapLayer& layer)>;
using LayerForward =
    std::function<std::vector<at::Tensor>(SwapLayer& layer, const LayerCall& call)>;
using LayerForwardBackward = std::function<std::vector<at::Tensor>(
    SwapLayer& layer, const LayerCall& call, const LayerGraph& backward)>;
using LayerBackward = std::function<std::vector<at::Tensor>(const LayerGraph& backward)>;

// Wraps a layer's construction: afterwards it has a swapper. A layer that has one keeps it. One
// with is_mtp has none, also if its base's construction made it one.
SWAPLINE_API LayerInit swap_layer_input_init_wrapper(LayerInit init,
                                                     std::shared_ptr<SwapLayerInputs> all);

// Wraps a layer's forward under an ordinary recompute function. Without grad and with a
// hidden_states that requires grad it is the first run: the input goes out, and former ones are let
// go of. With grad and a hidden_states that is out it is the second: the wait is here, before
// anything reads it. Else (evaluation, no recompute, a block's inner layers) nothing is swapped.
SWAPLINE_API LayerForward swap_layer_input_forward_wrapper(LayerForward forward);

// Wraps a layer's forward in forward-backward overlap: with call.checkpoint the input goes out, and
// is let go of when the layer has run.
SWAPLINE_API LayerForward swap_layer_input_fboverlap_forward_wrapper(LayerForward forward);

// Wraps one layer's forward that runs together with another's backward. The backward's input is
// there when `run` starts; the one before it comes in meanwhile and is there when it ends. The
// forward's input goes out as above. `backward` may have no layer, and either layer no swapper.
SWAPLINE_API LayerForwardBackward swap_layer_input_fboverlap_1f1b_wrapper(LayerForwardBackward run);

// Wraps a layer's backward (with its recompute) in forward-backward overlap: the same for it.
SWAPLINE_API LayerBackward swap_layer_input_fboverlap_backward_wrapper(LayerBackward run);

}  // namespace swapline
