// What is allowed. Written so that NaN is refused too.
#include "swapline/optimizer/muon_settings.h"

#include <c10/util/Exception.h>

namespace swapline {

void check(const MuonSettings& settings) {
  TORCH_CHECK_VALUE(settings.lr >= 0, "lr must be at least 0, got ", settings.lr);
  TORCH_CHECK_VALUE(
      settings.weight_decay >= 0, "weight_decay must be at least 0, got ", settings.weight_decay);
  TORCH_CHECK_VALUE(settings.momentum >= 0 && settings.momentum < 1,
                    "momentum must be in [0, 1), got ",
                    settings.momentum);
  TORCH_CHECK_VALUE(settings.eps >= 0, "eps must be at least 0, got ", settings.eps);
  TORCH_CHECK_VALUE(settings.ns_steps >= 1 && settings.ns_steps < 100,
                    "ns_steps must be in [1, 100), got ",
                    settings.ns_steps);
  TORCH_CHECK_VALUE(!settings.hybrid_ns || settings.ns_steps > kNumFastNsSteps,
                    "hybrid_ns changes the iterations beyond the eighth: ns_steps must be above ",
                    kNumFastNsSteps,
                    ", got ",
                    settings.ns_steps);
}

}  // namespace swapline
