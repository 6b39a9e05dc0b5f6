// What LayerInputs counts, and which inputs are on the device now. Inside layer_input/ only.
#pragma once

#include "swapline/layer_input/input_handle.h"
#include "swapline/layer_input/layer_inputs.h"

#include <cstdint>

namespace swapline {

// Called under the ledger's lock.
class InputCounts {
 public:
  LayerInputStats stats;  // all but the exposed times

  // Zero again, but for what is resident.
  void reset();
  void set_resident(InputHandle& handle, bool is_resident);
  // Its layer runs: while it does, the input is not counted as resident besides.
  void set_running(InputHandle& handle, bool is_running);
  // A layer starts to run. `running` is its input, whether or not that was said of it.
  void note_peak(const InputHandle& running);

 private:
  int64_t num_running_resident_ = 0;  // of stats.resident_inputs
};

}  // namespace swapline
