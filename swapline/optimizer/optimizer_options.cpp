// What is allowed. Written so that NaN is refused too.
#include "swapline/optimizer/optimizer_options.h"

#include <c10/util/Exception.h>

namespace swapline {

void check(const OptimizerOptions& options) {
  TORCH_CHECK_VALUE(options.swap_optimizer_times >= 1,
                    "swap_optimizer_times must be at least 1, got ",
                    options.swap_optimizer_times);
  TORCH_CHECK_VALUE(options.swap_optimizer_fraction >= 0 && options.swap_optimizer_fraction <= 1,
                    "swap_optimizer_fraction must be in [0, 1], got ",
                    options.swap_optimizer_fraction);
  TORCH_CHECK_VALUE(
      options.num_slots >= 3, "num_slots must be at least 3, got ", options.num_slots);
  TORCH_CHECK_VALUE(options.link_bytes_per_s > 0,
                    "link_bytes_per_s must be above 0, got ",
                    options.link_bytes_per_s);
  TORCH_CHECK_VALUE(options.copy_latency_s >= 0,
                    "copy_latency_s must be at least 0, got ",
                    options.copy_latency_s);
}

}  // namespace swapline
