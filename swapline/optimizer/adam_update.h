// From operands of any allowed dtypes to launches of a kernel: batches, casts, the kernel's choice.
#pragma once

#include "swapline/optimizer/adam_batch.h"
#include "swapline/optimizer/fused_adam.h"
#include "swapline/optimizer/grad_scaling.h"
#include "swapline/optimizer/scratch.h"
#include "swapline/optimizer/state_dtypes.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace swapline::detail {

// The operands of one parameter or a piece of it. All are dense, of the same number of elements and
// in the same order of memory, and of the dtypes that StateDtypes says.
struct AdamOperands {
  at::Tensor param;
  at::Tensor grad;
  std::vector<at::Tensor> moments;  // exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq
  at::Tensor master;                // undefined: the parameter itself is updated
  bool is_master_new = false;       // the master's value is still to come from the parameter
  at::Tensor step;                  // fp32 scalar on the device: the number of this step
  double step_number = 0;           // the same on the host
};

// Collects operands and launches them together on the current stream.
class AdamUpdate {
 public:
  AdamUpdate(c10::Device device, AdamKernel kernel);

  // Throws c10::Error when kFused was asked for and the device has no such kernel.
  void check(const AdamSettings& settings) const;
  // Whether the update reads AdamOperands::step.
  bool is_fused(const AdamSettings& settings) const;
  // Whether the learning rate may be a tensor on the device.
  bool takes_tensor_lr(const AdamSettings& settings) const;
  // Whether the kernel unscales gradients and leaves steps out. May block the calling thread, once.
  bool scales(const AdamSettings& settings) const;

  // Scratch that the update of one element needs, times Scratch::padded().
  size_t scratch_bytes(const StateDtypes& dtypes,
                       int num_moments,
                       const AdamSettings& settings) const;

  void add(size_t group, const StateDtypes& dtypes, AdamOperands operands);
  // Updates all that was added, by the settings of each group, and forgets it. `scratch` has room
  // for all of it by scratch_bytes().
  void launch(const std::vector<AdamSettings>& groups,
              const GradScaling& scaling,
              Scratch& scratch);
  void clear() { pending_.clear(); }
  // Of the update kernel; casts do not count.
  int64_t num_launches() const { return num_launches_; }

 private:
  struct Pending {
    size_t group;
    StateDtypes dtypes;
    std::vector<at::Tensor> params;
    std::vector<at::Tensor> masters;
    std::vector<at::Tensor> new_masters;  // those that begin as new_params
    std::vector<at::Tensor> new_params;
    std::vector<at::Tensor> moments[3];
    AdamBatch batch;  // gradients and steps
  };

  void update(Pending& pending,
              const AdamSettings& settings,
              const GradScaling& scaling,
              Scratch& scratch);

  FusedAdamSupport& support(const AdamSettings& settings) const;

  c10::Device device_;
  AdamKernel kernel_;
  // Mutable: they try when they are asked.
  mutable FusedAdamSupport fused_adamw_;
  mutable FusedAdamSupport fused_adam_;
  std::vector<Pending> pending_;
  int64_t num_launches_ = 0;
};

}  // namespace swapline::detail
