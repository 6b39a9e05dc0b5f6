// The ledger does it all: a saved input is a handle whose layer's run is told from outside.
#include "swapline/layer_input/saved_input.h"

#include "swapline/layer_input/input_ledger.h"
#include "swapline/layer_input/layer_inputs.h"
#include "swapline/layer_input/memory_sampler.h"

#include <utility>

#include <ATen/ops/detach.h>
#include <c10/util/Exception.h>

namespace swapline {

void SavedInput::layer_done() {
  if (handle_) {
    handle_->ledger->end_layer(*handle_);
  }
}

at::Tensor SavedInput::take() {
  TORCH_CHECK(handle_,
              "SavedInput::take: it is empty (moved from, finished, or never made by "
              "LayerInputs::save)");
  return handle_->ledger->take(*handle_).detach();
}

void SavedInput::recomputed(const std::vector<at::Tensor>& outputs) {
  if (handle_ && handle_->ledger->recomputed(*handle_)) {
    sample_memory(outputs, *handle_->ledger);
  }
}

void SavedInput::put_back() {
  if (handle_) {
    handle_->ledger->finish(*handle_, /*runs_again=*/true);
  }
}

void SavedInput::finish() {
  if (const HandlePtr handle = std::exchange(handle_, nullptr)) {
    if (handle->tells_recomputed) {
      handle->ledger->end_samples();
    }
    handle->ledger->finish(*handle, /*runs_again=*/false);
  }
}

SavedInput LayerInputs::save(const at::Tensor& hidden_states, const SavedInput* before) {
  TORCH_CHECK(hidden_states.defined(), "LayerInputs::save: hidden_states is undefined");
  const HandlePtr former = before != nullptr ? before->handle_ : nullptr;
  TORCH_CHECK(!former || former->ledger == ledger_,
              "LayerInputs::save: `before` was saved by other LayerInputs; give the input of the "
              "layer before in the same pass, or null");
  HandlePtr handle = ledger_->enter(hidden_states, former);
  ledger_->begin_layer(handle);
  return SavedInput(std::move(handle));
}

SavedInput LayerInputs::save_for_recompute(const at::Tensor& hidden_states, bool begins_pass) {
  TORCH_CHECK(hidden_states.defined(),
              "LayerInputs::save_for_recompute: hidden_states is undefined");
  const HandlePtr before = begins_pass ? HandlePtr() : ledger_->last_entered();
  HandlePtr handle = ledger_->enter(hidden_states, before);
  handle->tells_recomputed = true;
  return SavedInput(std::move(handle));
}

}  // namespace swapline
