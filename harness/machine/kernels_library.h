// The numbers of a fake runtime, for programs that nobody tells to load them.
#pragma once

namespace swapline::harness {

// Loads libharness_kernels.so from beside the fake runtime, the first time. Called by what every
// program asks of a device before it uses it, when the wheel has registered its own kernels.
void load_kernels();

}  // namespace swapline::harness
