// The device one trains on, as the trainer sees it: where tensors live, how long things took, how
// much memory they needed. The simulated accelerator is one implementation, torch's own devices the
// other; nothing else in the trainer knows the difference.
#pragma once

#include "trainer/config.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

namespace swapline::trainer {

// What device memory is used for, in the order of BytesByUse.
enum class MemoryUse { kOther, kParameters, kGradients, kOptimizerStates, kLayerInputs };
using BytesByUse = std::array<size_t, 5>;

// All zero where the device keeps no account.
struct MemoryReport {
  size_t capacity_bytes = 0;
  size_t peak_allocated_bytes = 0;  // since the last reset_peak_memory()
  size_t peak_reserved_bytes = 0;
  BytesByUse bytes_by_use{};       // now
  BytesByUse peak_bytes_by_use{};  // at the moment of peak_allocated_bytes
};

// A moment on the device's compute stream; on the CPU, on the clock.
struct TimeMark {
  std::shared_ptr<c10::Event> event;
  double clock_ms = 0;
};

class Device {
 public:
  explicit Device(c10::Device device) : torch_device_(device) {}
  virtual ~Device() = default;

  c10::Device torch_device() const { return torch_device_; }
  virtual std::string type() const = 0;    // "sim"
  virtual std::string preset() const = 0;  // "ascend-910b"; "" for real devices
  virtual bool has_virtual_time() const { return false; }
  virtual bool is_dry_run() const { return false; }
  virtual double peak_flops(c10::ScalarType) const { return 0; }  // per second; 0: unknown
  virtual double link_bytes_per_s() const { return 25e9; }  // between host and device, one way
  virtual double copy_latency_s() const { return 10e-6; }

  virtual MemoryReport memory() const = 0;
  virtual void reset_peak_memory() = 0;
  virtual void note_use(const c10::Storage&, MemoryUse) {}

  // The point reached by the work enqueued so far on the current stream, or on `stream`.
  TimeMark mark() const;
  TimeMark mark(const c10::Stream& stream) const;
  // Time from one mark to the other. Blocks the host until the later one is reached.
  double elapsed_ms(const TimeMark& begin, const TimeMark& end) const;

  virtual int64_t num_races() const { return 0; }  // on all devices
  virtual std::string first_race() const { return ""; }
  virtual void name_stream(const c10::Stream&, const std::string&) {}
  // A stream besides the current one, for copies.
  c10::Stream new_stream(const std::string& name);
  // The stream that work is enqueued on by the calling thread.
  c10::Stream current_stream() const;
  virtual std::string trace_json() const { return ""; }

 private:
  c10::Device torch_device_;
};

// Sets up the first `count` devices of the kind that the configuration asks for; of torch's own
// kinds there is one. Races and traces are told by each of them for all.
// Throws: std::runtime_error when this torch or this machine does not have them.
using Devices = std::vector<std::unique_ptr<Device>>;
Devices make_devices(const DeviceConfig& config, int64_t count, bool enable_trace);

Devices make_sim_devices(const DeviceConfig& config, int64_t count, bool enable_trace);
// The first device of its type, alone.
Devices make_torch_device(const std::string& type);

// Names of the simulated accelerators, and a table of them with their figures and sources.
std::vector<std::string> device_preset_names();
std::string device_preset_table();

}  // namespace swapline::trainer
