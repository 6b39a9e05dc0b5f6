// Loads the simulator when a simulated device is asked for, and not before.
#include "trainer/sim_device.h"

#include <stdexcept>
#include <string>

#include <dlfcn.h>

namespace swapline::trainer {

Devices make_sim_devices(const DeviceConfig& config, int64_t count, bool enable_trace) {
  void* library = dlopen("libswapline_sim_device.so", RTLD_NOW);
  void* fill = library == nullptr ? nullptr : dlsym(library, "fill_sim_devices");
  if (fill == nullptr) {
    throw std::runtime_error(
        "--device.type: found sim, whose library does not load; it lies beside libswapline.so: " +
        std::string(dlerror()));
  }
  Devices devices;
  reinterpret_cast<FillSimDevices*>(fill)(devices, config, count, enable_trace);
  return devices;
}

}  // namespace swapline::trainer
