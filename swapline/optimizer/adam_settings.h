// What the user sets: hyperparameters of a group, and where the states live.
#pragma once

#include "swapline/export.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace swapline {

// A group's hyperparameters, as in torch.optim. May be changed between steps; step() reads them.
struct AdamSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW; false: Adam, whose weight decay is added to the gradient
  bool amsgrad = false;   // may be switched off later, not on: it has a third state
  bool maximize = false;
};

struct AdamGroup {
  std::vector<at::Tensor> params;
  AdamSettings settings = {};
};

enum class StatePlacement {
  kDevice,  // resident: the plain optimizer
  kSwap,    // in pinned host memory, streamed through the device in step()
};

enum class AdamKernel {
  kAuto,      // fused where the device has it, else portable
  kFused,     // torch's _fused_adamw_, _fused_adam_; refused on a device without them
  kPortable,  // _foreach_ operators: the bits of torch.optim with foreach=True
};

// The arithmetic of an update, whatever the placement. It is done in the work dtype: the wider one
// of the states' dtype and that of what is updated, the parameter or its master. Moments, gradients
// and parameters of another dtype are cast to it on the device chunk by chunk, and moments and
// parameters are rounded back to nearest even at the end of the update.
struct AdamOptions {
  // Behaviour
  StatePlacement placement = StatePlacement::kSwap;
  // The device memory that step() uses for states is at most their total / times, and at least what
  // the pipeline needs. A bound, not an order: less is used where that is faster.
  int64_t swap_optimizer_times = 16;
  size_t swap_optimizer_arena_bytes = 0;  // the same bound in bytes; 0: none
  // The share of the states' bytes that is swapped, from 0 to 1. The rest, whole chunks, stays on
  // the device from its first update on, beside the bounds above, until drain() or state(); it has
  // its place in host memory all the same. Where the device has no room for it, it is swapped.
  double swap_optimizer_fraction = 1;
  // Of exp_avg, exp_avg_sq and max_exp_avg_sq: float, double, half or bfloat16. Unset: the
  // parameter's, or float where it has a master.
  std::optional<at::ScalarType> state_dtype = std::nullopt;
  // Half and bfloat16 parameters get a copy in the work dtype (at least float) among their states,
  // swapped with them: 12 bytes an element with float moments. It starts as the parameter is at its
  // first update. From then on the master is updated and the parameter is its rounding, so a change
  // of the parameter itself is overwritten.
  bool master_weights = false;
  AdamKernel kernel = AdamKernel::kAuto;

  // Performance
  int num_slots = 3;               // chunks on the device at once, at least 3
  double link_bytes_per_s = 25e9;  // per direction; with the next one it sets the size of a chunk
  double copy_latency_s = 10e-6;   // what a copy takes beside its bytes
};

// Throws c10::Error naming the option or hyperparameter and what is allowed.
SWAPLINE_API void check(const AdamSettings& settings);
SWAPLINE_API void check(const AdamOptions& options);

}  // namespace swapline
