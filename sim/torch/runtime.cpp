#include "sim/torch/runtime.h"

#include "sim/torch/generator.h"
#include "sim/torch/host_watch.h"
#include "sim/torch/idle.h"
#include "sim/torch/pending_work.h"
#include "sim/torch/sim.h"

#include <array>
#include <memory>

#include <c10/util/Exception.h>

namespace swapline::sim {
namespace {

std::unique_ptr<Simulator>& machine() {
  // Never destroyed: tensors and events of static duration may outlive every other static.
  static auto* machine = new std::unique_ptr<Simulator>([] {
    SimulatorOptions options;
    options.spec = preset("tiny");
    options.num_devices = kNumDevices;
    return std::make_unique<Simulator>(options);
  }());
  return *machine;
}

thread_local int thread_device = 0;
thread_local std::array<StreamId, kNumDevices> thread_streams{};

}  // namespace

Simulator& simulator() {
  return *machine();
}

void configure(SimulatorOptions options) {
  options.num_devices = kNumDevices;
  wait_until_idle();
  const size_t live = simulator().live_bytes();
  TORCH_CHECK(
      live == 0,
      "swapline::sim::configure: ",
      live,
      " bytes of device or pinned memory are still held; free every tensor of the simulated "
      "device first");
  check_loaded_in_time();
  auto fresh = std::make_unique<Simulator>(std::move(options));
  watch_host_ops(fresh->options().watch_host_ops);
  machine() = std::move(fresh);
  forget_machine_in_pending_work();
  thread_device = 0;
  thread_streams.fill(0);
}

void set_memory_kind(const c10::Storage& storage, MemoryKind kind) {
  if (storage && storage.device_type() == c10::DeviceType::PrivateUse1) {
    simulator().set_memory_kind(storage.data(), kind);
  }
}

int current_device() {
  return thread_device;
}

void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < kNumDevices,
              "no device sim:",
              device,
              "; there are sim:0 to sim:",
              kNumDevices - 1);
  thread_device = device;
}

StreamId current_stream(int device) {
  return thread_streams.at(device);
}

void set_current_stream(int device, StreamId stream) {
  thread_streams.at(device) = stream;
}

c10::Stream to_stream(int index, StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device(index), id);
}

}  // namespace swapline::sim
