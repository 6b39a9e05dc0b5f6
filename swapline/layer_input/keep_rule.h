// Which inputs are not worth swapping: too small, beyond the host's budget, needed at once. Inside
// layer_input/ only.
#pragma once

#include "swapline/layer_input/input_handle.h"
#include "swapline/layer_input/layer_inputs.h"

#include <cstddef>
#include <cstdint>

namespace swapline {

// Called under the ledger's lock.
class KeepRule {
 public:
  explicit KeepRule(const LayerInputOptions& options);

  // Asked once for each input, when its layer is about to run forward.
  bool keeps(InputHandle& handle);
  // It holds host memory from now on.
  void note_host_bytes(InputHandle& handle);
  // Passes are named: other backwards come before a last layer's.
  void note_hints() { has_hints_ = true; }
  // Its backward is about to run. `comes_next`: no other layer has run since its forward.
  void note_taken(InputHandle& handle, bool comes_next);
  void forget(InputHandle& handle);

 private:
  bool is_among_last(const InputHandle& handle, int64_t num_last) const;
  bool is_last_kept_by_auto(InputHandle& handle);

  int64_t num_layers_;
  int64_t keep_last_;
  size_t min_bytes_;
  size_t max_host_bytes_;
  size_t host_bytes_ = 0;
  bool has_hints_ = false;
  bool does_last_come_next_ = true;  // as far as was seen
  int64_t num_kept_last_ = 0;        // kept by kAuto and not taken yet
};

}  // namespace swapline
