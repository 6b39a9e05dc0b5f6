// The one function of libswapline_sim_device, which make_sim_devices loads.
#pragma once

#include "trainer/device.h"

namespace swapline::trainer {

using FillSimDevices = void(Devices& devices,
                            const DeviceConfig& config,
                            int64_t count,
                            bool enable_trace);

extern "C" __attribute__((visibility("default"))) FillSimDevices fill_sim_devices;

}  // namespace swapline::trainer
