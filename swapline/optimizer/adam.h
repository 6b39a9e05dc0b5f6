// Adam and AdamW whose states live in pinned host memory and stream through the device in step().
#pragma once

#include "swapline/export.h"
#include "swapline/optimizer/adam_settings.h"
#include "swapline/optimizer/optimizer.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace swapline {

namespace detail {
struct AdamGroups;
}

// Torch's fused kernels, with the bits of torch.optim.Adam and AdamW (fused=True), or _foreach_
// operators with those of foreach=True: see AdamOptions::kernel, and state_dtype and master_weights
// for states of another dtype than the parameters. States: exp_avg, exp_avg_sq, max_exp_avg_sq
// (amsgrad) and master_param (master_weights).
class SWAPLINE_API Adam final : public Optimizer {
 public:
  // States are reserved for parameters that require a gradient; the others get theirs when they
  // first have one. `context`: of the parameters' device; may be null with StatePlacement::kDevice.
  // Throws: c10::Error for parameters or options that are not allowed, HostMemoryError.
  Adam(std::shared_ptr<SwapContext> context,
       std::vector<AdamGroup> groups,
       AdamOptions options = {});
  // Parameters on several devices: a context for each.
  Adam(std::vector<std::shared_ptr<SwapContext>> contexts,
       std::vector<AdamGroup> groups,
       AdamOptions options = {});

  // One more group, e.g. of layers unfrozen later. Throws as the constructor does; nothing is
  // changed then.
  void add_group(AdamGroup group);

  size_t num_groups() const override;
  AdamSettings& settings(size_t group);
  double lr(size_t group) const override;
  void set_lr(size_t group, double lr) override;

 private:
  Adam(std::shared_ptr<detail::AdamGroups> shared,
       const std::vector<std::shared_ptr<SwapContext>>& contexts,
       const std::vector<AdamGroup>& groups,
       const AdamOptions& options);

  std::shared_ptr<detail::AdamGroups> groups_;
};

}  // namespace swapline
