// The optimizer of one device, by the options: Adam, AdamW, or Muon with AdamW beside it.
#pragma once

#include "swapline/optimizer/adam_settings.h"
#include "swapline/optimizer/optimizer.h"
#include "swapline/swap/swap_context.h"
#include "trainer/config.h"
#include "trainer/models/parameters.h"

#include <memory>
#include <string_view>
#include <vector>

namespace swapline::trainer {

// Whether --optimizer.name Muon updates the parameter by Muon: [m, n] or [E, m, n], and no name of
// an embedding or output, of which a step touches few rows or which no layer follows.
bool is_for_muon(const NamedParameter& parameter);

// `context`: of the parameters' device; nullptr on the CPU.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                          const std::vector<NamedParameter>& parameters,
                                          std::shared_ptr<SwapContext> context,
                                          const AdamOptions& options);

// Throws: UsageError for options that contradict --optimizer.name Muon.
void check_muon(const OptimizerConfig& config);

}  // namespace swapline::trainer
