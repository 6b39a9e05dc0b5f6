// The one machine of the process, and what is current on the calling thread. torch's registrations
// are process-wide, so this is the one place where the simulator keeps process-wide state.
#pragma once

#include "sim/core/simulator.h"
#include "sim/export.h"

#include <c10/core/Stream.h>

namespace swapline::sim {

SWAPLINE_SIM_API int current_device();
// Throws c10::Error when there is no such device.
void set_current_device(int device);

SWAPLINE_SIM_API StreamId current_stream(int device);
void set_current_stream(int device, StreamId stream);

SWAPLINE_SIM_API c10::Stream to_stream(int device, StreamId id);

}  // namespace swapline::sim
