// Torch's fused Adam kernels, and what a device makes of them.
#pragma once

#include "swapline/export.h"
#include "swapline/optimizer/adam_batch.h"
#include "swapline/optimizer/grad_scaling.h"

#include <optional>

#include <c10/core/Device.h>

namespace swapline::detail {

// What `device` can do with _fused_adamw_ (`decoupled`) or _fused_adam_. The dispatcher has an
// answer for each of them, which may be a detour by the host, or a kernel that leaves arguments
// out: so each is tried once, on a few numbers, when it is first asked for. Not thread-safe.
class SWAPLINE_API FusedAdamSupport {
 public:
  FusedAdamSupport(c10::Device device, bool decoupled) : device_(device), decoupled_(decoupled) {}

  // A kernel of the device itself updates. Enqueues a few operators; throws c10::OutOfMemoryError.
  bool runs();
  // The same with a learning rate that is a tensor on the device.
  bool takes_tensor_lr();
  // It divides gradients by grad_scale and updates nothing when found_inf is set. Blocks the
  // calling thread until that was tried.
  bool scales();

 private:
  bool try_once(bool with_tensor_lr) const;
  bool try_scaling() const;

  c10::Device device_;
  bool decoupled_;
  std::optional<bool> runs_;
  std::optional<bool> takes_tensor_lr_;
  std::optional<bool> scales_;
};

// One multi-tensor launch on the current stream.
void fused_adam(const AdamBatch& batch, const AdamSettings& settings, const GradScaling& scaling);

}  // namespace swapline::detail
