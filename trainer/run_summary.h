// What the parts of a run have to say at its end.
#pragma once

#include "trainer/device.h"
#include "trainer/rank.h"
#include "trainer/step_log.h"
#include "trainer/summary.h"

#include <cstdint>

namespace swapline::trainer {

// Sums over the devices; residents and times of the device that has the most.
LayerInputSummary summarize_layer_inputs(const Ranks& ranks, int64_t num_steps);

// All but what only the trainer knows. Blocks the host until the steps are done.
RunSummary summarize(const Devices& devices, const Ranks& ranks, const StepLog& log);

}  // namespace swapline::trainer
