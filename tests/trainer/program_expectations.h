// What tests of many runs of the program ask of each of them.
#pragma once

#include "tests/trainer/program_run.h"

#include <string>
#include <vector>

namespace swapline::trainer {

inline const std::string kAutoSwap = "--swap-layer-input.enable ";
inline const std::string kStrictSwap = kAutoSwap + "--swap-layer-input.max-swapping-out 1 ";
inline const std::string kLateCopies = "--device.late-copies ";

// Ended well, with no race.
void expect_trained(const ProgramRun& run);

// Trained, with the losses and norms of `same` to the last bit.
void expect_same_losses(const ProgramRun& run, const ProgramRun& same);

// Layer inputs left the device: at most one for each direction of copies beyond the running
// layer's own, and no backward found its input missing once the first step was over.
void expect_swapped(const ProgramRun& run);

// Virtual time of the last step.
double last_step_ms(const ProgramRun& run);

// Exit status 2 and one line that has all of `parts`.
void expect_usage_error(const std::string& arguments, const std::vector<std::string>& parts);

}  // namespace swapline::trainer
