// The simulated accelerator as a PyTorch device: torch::Device("sim"),
// c10::DeviceType::PrivateUse1.
//
// Linking libswapline_sim registers the backend. It must be loaded before the first backward of the
// process: autograd starts its device threads once. The machine has eight devices.
#pragma once

#include "sim/core/simulator.h"
#include "sim/export.h"

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

namespace swapline::sim {

inline constexpr int kNumDevices = 8;

// The machine behind torch::Device("sim"), made with preset "tiny" until configure() is called.
SWAPLINE_SIM_API Simulator& simulator();

// Replaces the machine: clocks at zero, no races, empty memory, new generators' seeds kept.
// Requires: no device tensor, stream, event or pinned tensor of the old machine is alive.
// Throws c10::Error when device or pinned memory is still held, and changes nothing then.
SWAPLINE_SIM_API void configure(SimulatorOptions options);

inline c10::Device device(int index = 0) {
  return c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index));
}

// Notes what a storage on the simulated device is used for. Other storages: nothing happens.
SWAPLINE_SIM_API void set_memory_kind(const c10::Storage& storage, MemoryKind kind);

}  // namespace swapline::sim
