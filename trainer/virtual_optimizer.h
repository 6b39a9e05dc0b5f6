// How much of the optimizer's states each pipeline rank keeps in mapped host memory.
#pragma once

#include "trainer/config.h"

#include <cstddef>
#include <vector>

namespace swapline::trainer {

// Bytes for each of `num_ranks` ranks; SIZE_MAX: all its states, 0: none.
// Throws: UsageError naming the option, what was found and what is allowed.
std::vector<size_t> virtual_optimizer_bytes(const OptimizerConfig& config, size_t num_ranks);

// Throws: UsageError for a size that cannot be read and for what virtual states do not go with.
void check_virtual_optimizer(const Config& config);

}  // namespace swapline::trainer
