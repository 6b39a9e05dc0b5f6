// Which input a call is about is found by its storage, in the list of those that are out.
#include "swapline/layer_input/wrappers.h"

#include "swapline/layer_input/input_ledger.h"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include <c10/core/GradMode.h>

namespace swapline {

namespace {

LayerInputOptions for_wrappers(LayerInputOptions options) {
  if (options.max_swapping_out == kAuto) {
    options.max_swapping_out = 1;
  }
  return options;
}

}  // namespace

struct SwapLayerInputs::Impl {
  // An input that is out, or that stays and whose backward still starts the one before it.
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t layer;
    HandlePtr handle;
  };
  struct Last {
    std::weak_ptr<InputHandle> handle;
    int64_t layer = 0;
  };

  // Recursive: an input let go of under the lock may run destructors that come back here.
  std::recursive_mutex mutex;
  std::shared_ptr<InputLedger> ledger;
  int64_t num_layers = 0;
  std::list<Entry> entries;  // oldest first
  int64_t microbatch = 0;
  std::map<int64_t, Last> last_of;         // of each micro-batch
  std::weak_ptr<InputHandle> coming_back;  // what a backward has prefetched last

  Impl(std::shared_ptr<SwapContext> context, LayerInputOptions options)
      : ledger(
            std::make_shared<InputLedger>(std::move(context), for_wrappers(std::move(options)))) {}

  std::list<Entry>::iterator find(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) {
      return entries.end();
    }
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    return std::find_if(entries.begin(), entries.end(), [storage](const Entry& entry) {
      return !entry.storage.expired() && entry.storage._unsafe_get_target() == storage;
    });
  }

  // Again and again: an input holds the graph that made it, and that one the input before.
  void sweep() {
    const auto is_abandoned = [this](const Entry& entry) {
      return ledger->is_swapped(*entry.handle) ? ledger->is_abandoned(*entry.handle)
                                               : entry.storage.expired();
    };
    while (std::erase_if(entries, is_abandoned) > 0) {
    }
  }

  // The input before `layer`'s in its pass: the last one made, if its layer comes before.
  HandlePtr before(int64_t layer) {
    const auto found = last_of.find(microbatch);
    return found != last_of.end() && found->second.layer < layer ? found->second.handle.lock()
                                                                 : nullptr;
  }

  bool begin_forward(const at::Tensor& hidden_states, int64_t layer) {
    sweep();
    // A layer that returned its input: the storage is out already, or on its way, for both.
    HandlePtr former = before(layer);
    const auto known = find(hidden_states);
    if (known != entries.end()) {
      former = ledger->before(*known->handle);
      ledger->bring_back(*known->handle);
      entries.erase(known);
    }
    HandlePtr handle = ledger->enter(hidden_states, former, Release::kInPlace);
    if (handle->bytes == 0) {  // refused
      return false;
    }
    const bool is_swapped = ledger->is_swapped(*handle);
    last_of[microbatch] = {handle, layer};
    entries.push_back({hidden_states.storage().getWeakStorageImpl(), layer, std::move(handle)});
    return is_swapped;
  }

  void begin_backward(const at::Tensor& hidden_states) {
    const auto found = find(hidden_states);
    if (found == entries.end()) {
      return;
    }
    // The framework's tensor is whole again and its own from here on.
    const HandlePtr handle = found->handle;
    ledger->take(*handle);
    coming_back = ledger->before(*handle);
    ledger->finish(*handle, /*runs_again=*/false);
    entries.erase(found);
  }
};

SwapLayerInputs::SwapLayerInputs(std::shared_ptr<SwapContext> context, LayerInputOptions options)
    : impl_(std::make_unique<Impl>(std::move(context), std::move(options))) {}

SwapLayerInputs::~SwapLayerInputs() {
  try {
    sweep();
    for (const Impl::Entry& entry : impl_->entries) {
      impl_->ledger->bring_back(*entry.handle);
    }
  } catch (...) {  // No memory for it: whoever reads the input finds it empty.
  }
}

void SwapLayerInputs::begin_microbatch(int64_t id) {
  const std::lock_guard lock(impl_->mutex);
  impl_->microbatch = id;
  std::erase_if(impl_->last_of, [](const auto& each) { return each.second.handle.expired(); });
  impl_->ledger->begin_microbatch(id);
}

void SwapLayerInputs::prefetch(int64_t microbatch) {
  impl_->ledger->prefetch_microbatch(microbatch);
}

LayerInputStats SwapLayerInputs::stats() const {
  return impl_->ledger->stats();
}

int64_t SwapLayerInputs::add_layer() {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_layers++;
}

void SwapLayerInputs::sweep() {
  const std::lock_guard lock(impl_->mutex);
  impl_->sweep();
}

LayerSwapper::LayerSwapper(std::shared_ptr<SwapLayerInputs> all, int64_t index)
    : all_(std::move(all)), index_(index) {}

std::vector<Residency> LayerSwapper::states() const {
  const std::lock_guard lock(all_->impl_->mutex);
  std::vector<Residency> found;
  for (const auto& entry : all_->impl_->entries) {
    if (entry.layer == index_) {
      found.push_back(all_->impl_->ledger->residency(*entry.handle));
    }
  }
  return found;
}

bool LayerSwapper::begin_forward(const at::Tensor& hidden_states) const {
  const std::lock_guard lock(all_->impl_->mutex);
  return all_->impl_->begin_forward(hidden_states, index_);
}

void LayerSwapper::cancel_forward(const at::Tensor& hidden_states) const {
  const std::lock_guard lock(all_->impl_->mutex);
  const auto found = all_->impl_->find(hidden_states);
  if (found != all_->impl_->entries.end()) {
    all_->impl_->ledger->bring_back(*found->handle);
    all_->impl_->entries.erase(found);
  }
}

void LayerSwapper::end_forward(const at::Tensor& hidden_states) const {
  const std::lock_guard lock(all_->impl_->mutex);
  const auto found = all_->impl_->find(hidden_states);
  if (found != all_->impl_->entries.end()) {
    all_->impl_->ledger->let_go_of(*found->handle);
  }
}

void LayerSwapper::begin_backward(const at::Tensor& hidden_states) const {
  const std::lock_guard lock(all_->impl_->mutex);
  all_->impl_->begin_backward(hidden_states);
}

void LayerSwapper::end_backward() const {
  const std::lock_guard lock(all_->impl_->mutex);
  if (const HandlePtr handle = all_->impl_->coming_back.lock()) {
    all_->impl_->ledger->bring_back(*handle);
  }
}

namespace {

// A forward whose input is out: if it throws, the input is back.
class ForwardScope {
 public:
  ForwardScope(const LayerSwapper* swapper, const at::Tensor& hidden_states)
      : swapper_(swapper != nullptr && swapper->begin_forward(hidden_states) ? swapper : nullptr),
        hidden_states_(hidden_states) {}
  ~ForwardScope() {
    if (swapper_ == nullptr) {
      return;
    }
    try {
      swapper_->cancel_forward(hidden_states_);
    } catch (...) {  // The error that got us here matters more.
    }
  }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  void done(bool lets_go) {
    const LayerSwapper* swapper = std::exchange(swapper_, nullptr);
    if (swapper != nullptr && lets_go) {
      swapper->end_forward(hidden_states_);
    }
  }

 private:
  const LayerSwapper* swapper_;
  const at::Tensor& hidden_states_;
};

// Runs with the backward layer's input in place; the one before it is in place afterwards.
template <typename Run>
std::vector<at::Tensor> with_input_back(const LayerGraph& backward, const Run& run) {
  const LayerSwapper* swapper = backward.layer != nullptr ? backward.layer->swapper.get() : nullptr;
  if (swapper == nullptr) {
    return run();
  }
  swapper->begin_backward(backward.layer_input);
  std::vector<at::Tensor> outputs = run();
  swapper->end_backward();
  return outputs;
}

const LayerSwapper* checkpointed_swapper(const SwapLayer& layer, const LayerCall& call) {
  return call.checkpoint && call.swap_this_tensor ? layer.swapper.get() : nullptr;
}

}  // namespace

LayerInit swap_layer_input_init_wrapper(LayerInit init, std::shared_ptr<SwapLayerInputs> all) {
  return [init = std::move(init), all = std::move(all)](SwapLayer& layer) {
    init(layer);
    if (layer.is_mtp) {
      layer.swapper = nullptr;
    } else if (layer.swapper == nullptr) {
      layer.swapper = std::make_shared<LayerSwapper>(all, all->add_layer());
    }
  };
}

LayerForward swap_layer_input_forward_wrapper(LayerForward forward) {
  return [forward = std::move(forward)](SwapLayer& layer, const LayerCall& call) {
    const LayerSwapper* swapper = layer.swapper.get();
    if (swapper == nullptr || !call.hidden_states.defined()) {
      return forward(layer, call);
    }
    if (c10::GradMode::is_enabled()) {
      swapper->begin_backward(call.hidden_states);
      return forward(layer, call);
    }
    const bool is_first_run = call.swap_this_tensor && call.hidden_states.requires_grad();
    ForwardScope scope(is_first_run ? swapper : nullptr, call.hidden_states);
    std::vector<at::Tensor> outputs = forward(layer, call);
    scope.done(/*lets_go=*/false);
    return outputs;
  };
}

LayerForward swap_layer_input_fboverlap_forward_wrapper(LayerForward forward) {
  return [forward = std::move(forward)](SwapLayer& layer, const LayerCall& call) {
    ForwardScope scope(checkpointed_swapper(layer, call), call.hidden_states);
    std::vector<at::Tensor> outputs = forward(layer, call);
    scope.done(/*lets_go=*/true);
    return outputs;
  };
}

LayerForwardBackward swap_layer_input_fboverlap_1f1b_wrapper(LayerForwardBackward run) {
  return
      [run = std::move(run)](SwapLayer& layer, const LayerCall& call, const LayerGraph& backward) {
        return with_input_back(backward, [&] {
          ForwardScope scope(checkpointed_swapper(layer, call), call.hidden_states);
          std::vector<at::Tensor> outputs = run(layer, call, backward);
          scope.done(/*lets_go=*/true);
          return outputs;
        });
      };
}

LayerBackward swap_layer_input_fboverlap_backward_wrapper(LayerBackward run) {
  return [run = std::move(run)](const LayerGraph& backward) {
    return with_input_back(backward, [&] { return run(backward); });
  };
}

}  // namespace swapline
