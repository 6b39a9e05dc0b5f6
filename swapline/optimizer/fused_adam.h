// Torch's fused Adam kernels.
#pragma once

#include "swapline/export.h"
#include "swapline/optimizer/adam_batch.h"
#include "swapline/optimizer/grad_scaling.h"

#include <c10/core/Device.h>

namespace swapline::detail {

// Whether `device` has _fused_adamw_ (`decoupled`) or _fused_adam_ as a kernel of its own: a
// backend's fallback, which may run on the host, does not count.
SWAPLINE_API bool has_fused_adam(c10::Device device, bool decoupled);

// One multi-tensor launch on the current stream.
void fused_adam(const AdamBatch& batch, const AdamSettings& settings, const GradScaling& scaling);

}  // namespace swapline::detail
