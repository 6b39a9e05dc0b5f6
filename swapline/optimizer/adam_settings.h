// What the user sets for Adam and AdamW: hyperparameters of a group, and the update's arithmetic.
#pragma once

#include "swapline/export.h"
#include "swapline/optimizer/optimizer_options.h"

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace swapline {

// A group's hyperparameters, as in torch.optim. May be changed between steps; step() reads them.
struct AdamSettings {
  double lr = 1e-3;
  // A float scalar on the device, or on the host, that stands in lr's place: whoever changes it
  // need not ask the host. Undefined: lr counts. Needs the fused kernel.
  at::Tensor lr_tensor = {};
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

enum class AdamKernel {
  kAuto,      // fused where the device has it, else portable
  kFused,     // torch's _fused_adamw_, _fused_adam_; refused on a device without them
  kPortable,  // _foreach_ operators: the bits of torch.optim with foreach=True
};

// The arithmetic of an update, whatever the placement. It is done in the work dtype: the wider one
// of the states' dtype and that of what is updated, the parameter or its master. Moments, gradients
// and parameters of another dtype are cast to it on the device chunk by chunk, and moments and
// parameters are rounded back to nearest even at the end of the update.
struct AdamOptions : OptimizerOptions {
  // Of exp_avg, exp_avg_sq and max_exp_avg_sq: float, double, half or bfloat16. Unset: the
  // parameter's, or float where it has a master.
  std::optional<at::ScalarType> state_dtype = std::nullopt;
  // Half and bfloat16 parameters get a copy in the work dtype (at least float) among their states,
  // swapped with them: 12 bytes an element with float moments. It starts as the parameter is at its
  // first update. From then on the master is updated and the parameter is its rounding, so a change
  // of the parameter itself is overwritten.
  bool master_weights = false;
  AdamKernel kernel = AdamKernel::kAuto;
};

// Throws c10::Error naming the option or hyperparameter and what is allowed.
SWAPLINE_API void check(const AdamSettings& settings);
SWAPLINE_API void check(const AdamOptions& options);

}  // namespace swapline
