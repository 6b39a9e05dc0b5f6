// What is allowed.
#include "swapline/optimizer/adam_settings.h"

#include <c10/util/Exception.h>

namespace swapline {

void check(const AdamSettings& settings) {
  // Written so that NaN is refused too.
  TORCH_CHECK_VALUE(settings.lr >= 0, "lr must be at least 0, got ", settings.lr);
  TORCH_CHECK_VALUE(
      !settings.lr_tensor.defined() ||
          (settings.lr_tensor.numel() == 1 && settings.lr_tensor.scalar_type() == at::kFloat),
      "lr_tensor must be one float, got ",
      settings.lr_tensor.toString(),
      " of sizes ",
      settings.lr_tensor.sizes());
  TORCH_CHECK_VALUE(
      settings.beta1 >= 0 && settings.beta1 < 1, "beta1 must be in [0, 1), got ", settings.beta1);
  TORCH_CHECK_VALUE(
      settings.beta2 >= 0 && settings.beta2 < 1, "beta2 must be in [0, 1), got ", settings.beta2);
  TORCH_CHECK_VALUE(settings.eps >= 0, "eps must be at least 0, got ", settings.eps);
  TORCH_CHECK_VALUE(
      settings.weight_decay >= 0, "weight_decay must be at least 0, got ", settings.weight_decay);
}

void check(const AdamOptions& options) {
  check(static_cast<const OptimizerOptions&>(options));
  if (options.state_dtype) {
    const at::ScalarType dtype = *options.state_dtype;
    TORCH_CHECK_VALUE(
        dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16,
        "state_dtype must be float, double, half or bfloat16, got ",
        dtype);
  }
}

}  // namespace swapline
