// Threads that nobody sees: autograd runs backward on one thread a device, which lets go of its
// last node, with the tensors and Python objects that the node holds, a moment after backward() has
// returned. Whoever counts bytes, replaces the machine or ends the process waits for that moment.
#pragma once

#include "sim/export.h"

#include <chrono>

namespace swapline::sim {

// Blocks until the threads that have worked for the device (for any) hold nothing of what is done.
// Costs no virtual time. Nothing happens inside a backward, whose thread cannot wait for itself,
// and under Python's interpreter lock, which such a thread may need.
SWAPLINE_SIM_API void wait_until_idle(int device);
SWAPLINE_SIM_API void wait_until_idle();
// The same for a process that is about to end, also when a backward still runs on another thread:
// false when `limit` has passed.
SWAPLINE_SIM_API bool wait_until_idle_for(std::chrono::milliseconds limit);

// Fails with a clear error when the library was loaded after autograd had started its device
// threads. Checked once, at the first tensor, by running a backward: not under Python's interpreter
// lock.
SWAPLINE_SIM_API void check_loaded_in_time();

}  // namespace swapline::sim
