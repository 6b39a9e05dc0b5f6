// The second run has grad, and the random numbers and autocast flags of the first.
#include "swapline/layer_input/layer_run.h"

#include "swapline/layer_input/input_ledger.h"

#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace swapline {
namespace {

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.is_inference() ? tensor._version() : 0;
}

at::Tensor as_leaf(const at::Tensor& tensor, bool requires_grad) {
  return tensor.defined() ? tensor.detach().set_requires_grad(requires_grad) : tensor;
}

class RunningAgain {
 public:
  explicit RunningAgain(InputLedger& ledger) : ledger_(ledger) { ledger_.set_running_again(true); }
  ~RunningAgain() { ledger_.set_running_again(false); }
  RunningAgain(const RunningAgain&) = delete;
  RunningAgain& operator=(const RunningAgain&) = delete;

 private:
  InputLedger& ledger_;
};

}  // namespace

LayerRun::LayerRun(LayerInputs::Layer layer,
                   std::vector<at::Tensor> others,
                   ReplayState state,
                   HandlePtr handle)
    : layer(std::move(layer)),
      others(std::move(others)),
      state(std::move(state)),
      handle(std::move(handle)) {
  for (const at::Tensor& other : this->others) {
    versions.push_back(version_of(other));
  }
}

void LayerRun::check_versions() const {
  for (size_t i = 0; i < others.size(); ++i) {
    TORCH_CHECK(version_of(others[i]) == versions[i],
                "recompute: the layer's argument ",
                i + 1,
                " was modified by an in-place operation after its forward");
  }
}

LayerRun::Again LayerRun::begin_backward() {
  const at::Tensor input = handle->ledger->take(*handle);
  if (ahead) {
    Again again = std::move(*ahead);
    ahead.reset();
    return again;
  }
  return run_again(input);
}

void LayerRun::run_ahead() {
  InputLedger& ledger = *handle->ledger;
  if (ahead || ledger.is_in_use(*handle)) {
    return;
  }
  check_versions();
  const at::Tensor input = ledger.take_ahead(*handle);
  try {
    ahead = run_again(input);
  } catch (...) {
    ledger.give_up(*handle);
    throw;
  }
}

LayerRun::Again LayerRun::run_again(const at::Tensor& input) const {
  InputLedger& ledger = *handle->ledger;
  Again again;
  again.input = as_leaf(input, input_requires_grad);
  for (const at::Tensor& other : others) {
    again.others.push_back(as_leaf(other, other.defined() && other.requires_grad()));
  }
  const ReplayScope scope(state, input.device(), ledger.options().preserve_rng_state);
  const RunningAgain running(ledger);
  const at::AutoGradMode with_grad(true);
  again.outputs = layer(again.input, again.others);
  TORCH_CHECK(again.outputs.size() == num_outputs,
              "recompute: the layer returned ",
              again.outputs.size(),
              " tensors, and ",
              num_outputs,
              " in forward");
  return again;
}

}  // namespace swapline
