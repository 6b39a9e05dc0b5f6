// A backward that fails returns a moment before autograd's thread lets go of the node it was in,
// and of what that has saved.
#pragma once

#include "sim/torch/sim.h"

#include <chrono>
#include <thread>

namespace swapline::testing {

// Returns when nothing is held on the simulated machine, or after two seconds.
inline void wait_for_autograd_threads() {
  for (int ms = 0; ms < 2000 && sim::simulator().live_bytes() != 0; ++ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace swapline::testing
