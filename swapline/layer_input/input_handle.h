// One layer's input of one forward pass, from there to the backward that uses it. Inside
// layer_input/ only.
#pragma once

#include "swapline/swap/swap_group.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace swapline {

class InputLedger;
struct LayerRun;

// Owned by whoever runs that backward. What is in it belongs to the ledger, under its lock.
struct InputHandle {
  explicit InputHandle(std::shared_ptr<InputLedger> ledger);
  ~InputHandle();
  InputHandle(const InputHandle&) = delete;
  InputHandle& operator=(const InputHandle&) = delete;

  bool is_on_its_way_out() const { return group && group->residency() == Residency::kSwappingOut; }

  // First, so that it goes last: the group needs the ledger's context.
  const std::shared_ptr<InputLedger> ledger;
  std::optional<SwapGroup> group;  // empty: `kept` holds the input on the device
  at::Tensor kept;
  Release release = Release::kDrop;
  size_t bytes = 0;
  size_t host_bytes = 0;  // counted against max_host_bytes
  int64_t index = 0;      // of the layer in its pass
  // The input before this one in the same pass: the next one that backward wants.
  std::weak_ptr<InputHandle> before;
  std::weak_ptr<LayerRun> run;    // empty: it is not recompute() that runs the layer again
  bool tells_recomputed = false;  // recomputed() will be called when the layer has run again
  c10::VariableVersion version;   // of the caller's tensor
  uint32_t version_at_entry = 0;
  bool is_resident = false;   // counted in resident_inputs
  bool is_running = false;    // its layer runs backward, or forward beside other layers
  bool is_kept_last = false;  // counted among those that keep_last kAuto keeps
  bool was_taken = false;
  bool is_finished = false;
};

using HandlePtr = std::shared_ptr<InputHandle>;

}  // namespace swapline
