// Adam out of _foreach_ operators, for devices without the fused kernels.
#pragma once

#include "swapline/optimizer/adam_batch.h"
#include "swapline/optimizer/scratch.h"

namespace swapline::detail {

// The operations of torch.optim's foreach path (not capturable), in its order, hence its bits on
// operators that are the same; what that path allocates comes from `scratch`. Operands are vectors.
void portable_adam(const AdamBatch& batch, const AdamSettings& settings, Scratch& scratch);

// Vectors as long as the batch that portable_adam takes from the scratch at most.
int num_portable_vectors(const AdamSettings& settings, bool owns_grads);

}  // namespace swapline::detail
