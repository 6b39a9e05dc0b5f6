// Muon whose momentum lives in pinned host memory and streams through the device in step().
#pragma once

#include "swapline/export.h"
#include "swapline/optimizer/adam_settings.h"
#include "swapline/optimizer/muon_settings.h"
#include "swapline/optimizer/optimizer.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace swapline {

namespace detail {
struct HybridGroups;
}

// Matrices by Muon, with the bits of torch.optim.Muon; other parameters, which Muon does not suit,
// by AdamW or Adam, in the same step and through the same slots: the products of the one hide the
// copies of the other. State of a matrix: momentum_buffer, in its dtype; of the others: see Adam.
//
// A matrix is updated as a whole, so a slot holds at least the largest of them; of [E, m, n] it
// holds a few, by their size. Products are done in bfloat16. Unlike torch 2.13, bfloat16 matrices
// without nesterov keep their momentum: there it is divided by its norm in each step.
class SWAPLINE_API Muon final : public Optimizer {
 public:
  // Groups are numbered as they come: `matrices`, then `others`. `options`: state_dtype,
  // master_weights and kernel are those of `others`. States are reserved for parameters that
  // require a gradient; the rest get theirs when they first have one. `context`: of the parameters'
  // device; may be null with StatePlacement::kDevice. Throws: c10::Error for parameters or options
  // that are not allowed, HostMemoryError.
  Muon(std::shared_ptr<SwapContext> context,
       std::vector<MuonGroup> matrices,
       std::vector<AdamGroup> others = {},
       AdamOptions options = {});
  // Parameters on several devices: a context for each.
  Muon(std::vector<std::shared_ptr<SwapContext>> contexts,
       std::vector<MuonGroup> matrices,
       std::vector<AdamGroup> others = {},
       AdamOptions options = {});

  // One more group. Throws as the constructor does; nothing is changed then.
  void add_group(MuonGroup group);
  void add_group(AdamGroup group);

  size_t num_groups() const override;
  double lr(size_t group) const override;
  void set_lr(size_t group, double lr) override;
  // Whether a group's parameters are updated by Muon.
  bool has_matrices(size_t group) const;
  // Requires: has_matrices(group).
  MuonSettings& settings(size_t group);
  // Requires: !has_matrices(group).
  AdamSettings& adam_settings(size_t group);

 private:
  Muon(std::shared_ptr<detail::HybridGroups> shared,
       const std::vector<std::shared_ptr<SwapContext>>& contexts,
       const std::vector<std::vector<at::Tensor>>& params,
       const AdamOptions& options);

  void add_params_of(const std::vector<at::Tensor>& params);

  std::shared_ptr<detail::HybridGroups> groups_;
};

}  // namespace swapline
