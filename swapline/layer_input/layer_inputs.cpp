// The public face of the ledger. recompute() itself is in recompute.cpp, with its includes.
#include "swapline/layer_input/layer_inputs.h"

#include "swapline/layer_input/input_ledger.h"

#include <utility>

namespace swapline {

LayerInputs::LayerInputs(std::shared_ptr<SwapContext> context, LayerInputOptions options)
    : ledger_(std::make_shared<InputLedger>(std::move(context), std::move(options))) {}

LayerInputs::~LayerInputs() = default;

const std::shared_ptr<SwapContext>& LayerInputs::context() const {
  return ledger_->context();
}

const LayerInputOptions& LayerInputs::options() const {
  return ledger_->options();
}

void LayerInputs::begin_microbatch(int64_t id) {
  ledger_->begin_microbatch(id);
}

void LayerInputs::prefetch(int64_t microbatch) {
  ledger_->prefetch_microbatch(microbatch);
}

LayerInputStats LayerInputs::stats() const {
  return ledger_->stats();
}

void LayerInputs::reset_stats() {
  ledger_->reset_stats();
}

}  // namespace swapline
