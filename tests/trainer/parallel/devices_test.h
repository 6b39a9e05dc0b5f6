// The fixture of tests on several simulated devices of one machine, as the trainer sees them.
#pragma once

#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"
#include "trainer/device.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

class DevicesTest : public swapline::testing::SimTest {
 protected:
  void SetUp() override { devices_ = make_sim_devices(device_config(), 4, /*enable_trace=*/false); }
  void TearDown() override {
    devices_.clear();
    SimTest::TearDown();
  }

  virtual DeviceConfig device_config() const {
    DeviceConfig config;
    config.preset = "tiny";
    return config;
  }
  Device& device_at(size_t index) { return *devices_[index]; }
  std::vector<Device*> first_devices(size_t count) {
    std::vector<Device*> found;
    for (size_t i = 0; i < count; ++i) {
      found.push_back(devices_[i].get());
    }
    return found;
  }
  at::Tensor random_on(size_t index, at::IntArrayRef sizes, uint64_t seed) {
    return swapline::testing::random_tensor(sizes, seed, device_at(index).torch_device());
  }
  // Nothing is under way on any device, and all of them are at the same time.
  void synchronize() {
    sim::Nanos latest = 0;
    for (size_t i = 0; i < devices_.size(); ++i) {
      sim().synchronize_device(static_cast<int>(i));
      latest = std::max(latest, sim().host_time(static_cast<int>(i)));
    }
    for (size_t i = 0; i < devices_.size(); ++i) {
      const int index = static_cast<int>(i);
      sim().advance_host(index, latest - sim().host_time(index));
    }
  }
  // When the work on the device's current stream is done, with what the host would do next.
  double microseconds_at(size_t index) {
    const int device = static_cast<int>(index);
    return 1e-3 *
           static_cast<double>(std::max(sim().stream_time(device, 0), sim().host_time(device)));
  }
  // Of one copy from device to device.
  double copy_microseconds(double bytes) {
    const sim::DeviceSpec& spec = sim().options().spec;
    return 1e-3 * static_cast<double>(spec.peer_latency) + bytes / spec.peer_bytes_per_s * 1e6;
  }

 private:
  Devices devices_;
};

}  // namespace swapline::trainer
