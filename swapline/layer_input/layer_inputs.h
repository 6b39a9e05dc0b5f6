// Layer inputs in host memory: recompute with swap built in.
//
// Each layer's input (hidden_states) is copied to pinned host memory while the layer runs forward
// and let go on the device; in backward it comes back, one layer ahead, and the layer is run again
// from it. The copy belongs to the autograd node that will need it: any order of backwards, passes
// without one, several models and exceptions are right by construction.
#pragma once

#include "swapline/export.h"
#include "swapline/layer_input/saved_input.h"
#include "swapline/swap/eligibility.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

// LayerInputOptions::max_swapping_out and keep_last: learned.
inline constexpr int64_t kAuto = -1;

struct LayerInputOptions {
  // Behaviour
  bool enabled = true;               // false: the same recompute, inputs stay on the device
  bool preserve_rng_state = true;    // dropout draws the same numbers in forward and recompute
  std::string module_tag = "layer";  // named in errors and in the log
  SwapPredicate custom_check = {};   // asked for each input; false: it stays on the device
  // Performance
  int64_t num_layers = 0;  // recompute calls in a pass; 0: unknown, then keep_last has no effect
  // Inputs of the last so many layers stay on the device: needed at once. kAuto: the last one, as
  // long as its backward comes next; none while another pass's waits, after a last layer's backward
  // that others came before, or once begin_microbatch() was called. Never more: memory peaks where
  // the first backward begins, and there a second one would come on top.
  int64_t keep_last = kAuto;
  int64_t prefetch = 1;       // layers ahead that inputs are brought back in backward
  size_t prefetch_bytes = 0;  // most bytes brought back ahead; 0: no limit
  // Inputs whose copy out is not done that may outlive their layer before compute waits. 1: strict,
  // at most one input on the device beyond the running layers' own for each copy direction. 0: wait
  // for each at once. kAuto: strict for two passes, which show where memory peaks; from then on as
  // many as fit under that peak, gone before the first backward of a pass reaches it. Strict's peak
  // of allocated bytes, and never slower; reserved bytes may pass strict's while it learns, by a
  // segment that then goes back. Learned anew when an input is larger than those seen. Strict where
  // passes are named (begin_microbatch), where forwards and backwards overlap (save), beside
  // recompute_ahead, with layers inside layers, and where the device's allocator tells nothing (no
  // c10::DeviceAllocator).
  int64_t max_swapping_out = kAuto;
  size_t min_bytes = 0;       // smaller inputs stay on the device
  size_t max_host_bytes = 0;  // inputs held in host memory at once; 0: no limit
};

struct LayerInputStats {
  int64_t num_swapped_out = 0;
  int64_t num_swapped_in = 0;
  size_t bytes_out = 0;
  size_t bytes_in = 0;
  int64_t num_prefetch_hits = 0;      // on its way when its backward came
  int64_t num_prefetch_misses = 0;    // had to be fetched by its own backward
  int64_t num_failed_prefetches = 0;  // no memory or a failed copy: tried again when needed
  int64_t num_recalls = 0;            // wanted before it was let go: no copy in
  int64_t num_kept_on_device = 0;     // by keep_last, min_bytes, max_host_bytes
  int64_t num_refused = 0;            // may not be swapped (is_valid_for_swap, custom_check)
  int64_t num_host_failures = 0;      // no pinned memory: stayed on the device
  size_t bytes_not_freed = 0;         // let go by us, still held by someone else
  int64_t resident_inputs = 0;        // on the device now, for our sake
  int64_t peak_resident_inputs = 0;   // most of them while a layer runs, its own not counted
  // Time compute stood still, with SwapContextOptions::timing; of the whole context.
  double exposed_out_ms = 0;
  double exposed_in_ms = 0;
};

// One model's layers on one device. Forward and backward may run on different threads, one at a
// time.
class SWAPLINE_API LayerInputs {
 public:
  // Runs a layer. `others` are the tensors given to recompute, undefined ones included; it may
  // return any number of tensors. It must not hold on to what it is given, and must do the same
  // each time it is called.
  using Layer = std::function<std::vector<at::Tensor>(const at::Tensor& hidden_states,
                                                      const std::vector<at::Tensor>& others)>;

  // `context` may be null when `options.enabled` is false: recompute works on any device then.
  // Throws c10::Error naming the option that is out of range.
  LayerInputs(std::shared_ptr<SwapContext> context, LayerInputOptions options);
  ~LayerInputs();
  LayerInputs(const LayerInputs&) = delete;
  LayerInputs& operator=(const LayerInputs&) = delete;

  // layer(hidden_states, others), run again in backward. `others` stay on the device. Without a
  // backward to come (grad mode off, nothing requires grad) the layer is just called.
  // Gradients reach hidden_states, others and, inside the layer, parameters. Not supported, with an
  // error that says so: double backward, torch.autograd.grad and backward(inputs=...).
  // Throws c10::Error in backward when hidden_states or one of `others` was written in place since.
  std::vector<at::Tensor> recompute(Layer layer,
                                    const at::Tensor& hidden_states,
                                    std::vector<at::Tensor> others = {});
  // The same for a layer of one tensor.
  at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> layer,
                       const at::Tensor& hidden_states);

  // Saves a layer's input for a schedule that runs the layer, its recompute and its backward by
  // itself: see SavedInput. Call it when the layer is about to run forward. `before`: the input of
  // the layer before in the same pass, which backward wants after this one; null or empty: none.
  // The caller passes its own handle of hidden_states on and lets go of it; aliases are safe.
  // Throws c10::Error for an undefined tensor and for a `before` of other LayerInputs.
  SavedInput save(const at::Tensor& hidden_states, const SavedInput* before = nullptr);

  // The same for a framework that recomputes: its layers run one after the other, forwards and
  // backwards do not overlap, and each is run again, whole, when its backward begins. kAuto learns
  // here as with recompute(), once recomputed() is called. `begins_pass`: the first layer of a
  // pass; else backward wants the input saved last after this one.
  SavedInput save_for_recompute(const at::Tensor& hidden_states, bool begins_pass);

  // Hints for schedules with several passes in flight. They cost time when wrong or missing, never
  // correctness. begin_microbatch names the pass that follows, until the next call; prefetch brings
  // back the last input of that pass, which its backward needs first: call it one slot ahead of
  // that backward, and for one pass at a time, as each adds one input on the device. One that is
  // still on its way out is recalled. Unknown names are ignored. Use them with keep_last kAuto or
  // 0.
  void begin_microbatch(int64_t id);
  void prefetch(int64_t microbatch);
  // Runs the last layer that recompute() was called for in that pass again now, with grad, on the
  // current stream, for a schedule whose compute would stand still otherwise. The stream waits for
  // the input here. The pass's backward then uses what was made, with the same bits, and does not
  // run that layer again. Until then the input and the layer's activations stay on the device.
  // Nothing happens for unknown names, a pass that was run ahead already or whose backward has run.
  // Throws c10::Error inside a backward, and what the layer throws: the input is out again then,
  // and its backward runs the layer as if nothing had been tried.
  void recompute_ahead(int64_t microbatch);

  // Null where none was given.
  const std::shared_ptr<SwapContext>& context() const;
  const LayerInputOptions& options() const;
  // Blocks the host for exposed times when the context measures them.
  LayerInputStats stats() const;
  // Counts start again at zero; what is resident stays counted.
  void reset_stats();

 private:
  std::shared_ptr<class InputLedger> ledger_;
};

}  // namespace swapline
