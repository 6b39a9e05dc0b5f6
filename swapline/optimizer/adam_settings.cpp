// What is allowed.
#include "swapline/optimizer/adam_settings.h"

#include <c10/util/Exception.h>

namespace swapline {

void check(const AdamSettings& settings) {
  // Written so that NaN is refused too.
  TORCH_CHECK(settings.lr >= 0, "lr must be at least 0, got ", settings.lr);
  TORCH_CHECK(
      settings.beta1 >= 0 && settings.beta1 < 1, "beta1 must be in [0, 1), got ", settings.beta1);
  TORCH_CHECK(
      settings.beta2 >= 0 && settings.beta2 < 1, "beta2 must be in [0, 1), got ", settings.beta2);
  TORCH_CHECK(settings.eps >= 0, "eps must be at least 0, got ", settings.eps);
  TORCH_CHECK(
      settings.weight_decay >= 0, "weight_decay must be at least 0, got ", settings.weight_decay);
}

void check(const AdamOptions& options) {
  TORCH_CHECK(options.swap_optimizer_times >= 1,
              "swap_optimizer_times must be at least 1, got ",
              options.swap_optimizer_times);
  TORCH_CHECK(options.swap_optimizer_fraction >= 0 && options.swap_optimizer_fraction <= 1,
              "swap_optimizer_fraction must be in [0, 1], got ",
              options.swap_optimizer_fraction);
  TORCH_CHECK(options.num_slots >= 3, "num_slots must be at least 3, got ", options.num_slots);
  TORCH_CHECK(options.link_bytes_per_s > 0,
              "link_bytes_per_s must be above 0, got ",
              options.link_bytes_per_s);
  TORCH_CHECK(options.copy_latency_s >= 0,
              "copy_latency_s must be at least 0, got ",
              options.copy_latency_s);
  if (options.state_dtype) {
    const at::ScalarType dtype = *options.state_dtype;
    TORCH_CHECK(
        dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16,
        "state_dtype must be float, double, half or bfloat16, got ",
        dtype);
  }
}

}  // namespace swapline
