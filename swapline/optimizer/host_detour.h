// Finds operators that take a detour by the host: a backend may serve what it has no kernel for by
// copying to the CPU and back, which makes the host wait for each copy.
#pragma once

#include <functional>

namespace swapline::detail {

// Calls `run` on this thread; whether a tensor was copied between a device and the CPU in it.
bool takes_host_detour(const std::function<void()>& run);

}  // namespace swapline::detail
