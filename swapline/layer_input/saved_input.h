// A layer's input for those who run the layer, its recompute and its backward by themselves.
//
// Piece by piece, where no single autograd function could: forward-backward overlap, expert
// parallelism.
//
//   SavedInput saved = inputs.save(hidden_states, &saved_of_the_layer_before);
//   ... the layer's forward, in pieces ...
//   saved.layer_done();                     // or the next save() on the same LayerInputs
//   ...
//   at::Tensor input = saved.take();        // its backward begins
//   ... recompute and backward, in pieces; then the caller lets go of `input` ...
//   saved.finish();
//
// Between save() and layer_done() other layers' inputs may be taken and finished: the copy out of
// the running layer's input is not waited for then. Strict keeps, beyond the inputs of the layers
// that run, one on its way out and one on its way in; compute waits for a copy only where it takes
// longer than the layer beside it. A layer_done() that is missing costs time or memory, never bits.
//
// Whole, one layer after the other, in a framework that recomputes: save_for_recompute(), take(),
// recomputed(), finish().
#pragma once

#include "swapline/export.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

struct InputHandle;

// Of one layer and one forward pass. Move-only; empty when made so, moved from or finished. May
// outlive the LayerInputs. As thread-safe as those: forward and backward may run on different
// threads, one at a time.
class SWAPLINE_API SavedInput {
 public:
  SavedInput() = default;
  // An input that was never taken, or not finished, is given up: its host and device memory go, the
  // latter when a copy in flight is done.
  ~SavedInput() = default;
  SavedInput(SavedInput&&) noexcept = default;
  SavedInput& operator=(SavedInput&&) noexcept = default;

  explicit operator bool() const { return handle_ != nullptr; }

  // The layer has run forward, all of it: its input goes when its copy out is done, at the latest
  // behind the next layer. Nothing happens when it was done already or the input is empty.
  void layer_done();
  // The input for the layer's backward, usable on the current stream, which waits exactly here if
  // it is not back yet; without autograd history. Starts the prefetch of the one before. May be
  // called again before finish(). Requires: not empty, and hidden_states not written since save();
  // else throws c10::Error, as it does when the device has no memory for it: try again then.
  at::Tensor take();
  // Of save_for_recompute(), so that memory is seen where it peaks: the layer has run again and
  // goes backward now. `outputs`: of that run, if what goes backward is its graph; empty when it is
  // the first run's, whose node has asked for the second run.
  void recomputed(const std::vector<at::Tensor>& outputs);
  // Its backward has run and may run again (retain_graph): lets go of the device memory until
  // take() is called the next time. The caller has let go of what it was given.
  void put_back();
  // Its backward has run: lets go of the input and empties this. Nothing happens when it is empty.
  void finish();

 private:
  friend class LayerInputs;
  explicit SavedInput(std::shared_ptr<InputHandle> handle) : handle_(std::move(handle)) {}

  std::shared_ptr<InputHandle> handle_;
};

}  // namespace swapline
