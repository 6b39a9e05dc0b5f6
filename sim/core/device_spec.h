// What a simulated device can do: sizes, rates and latencies, and presets with their sources.
#pragma once

#include "sim/export.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace swapline::sim {

using Nanos = int64_t;

// Which arithmetic unit an operator runs on.
enum class Precision { kFloat16, kFloat32, kFloat64 };  // kFloat16: also bfloat16

struct DeviceSpec {
  std::string name;
  std::string source;  // where the figures come from

  size_t memory_bytes = 0;
  double memory_bytes_per_s = 0;  // of the device's own memory (HBM)

  double float16_flops = 0;  // peak, per second
  double float32_flops = 0;
  double float64_flops = 0;
  double compute_efficiency = 1;  // share of the peak that large matrix products reach
  Nanos launch_latency = 0;       // time on the stream that each operator takes at least
  Nanos host_op_time = 0;         // time on the host that each launch takes

  double h2d_bytes_per_s = 0;
  double d2h_bytes_per_s = 0;
  bool full_duplex = true;  // false: both directions share one engine
  Nanos copy_latency = 0;   // per copy, on its engine, not overlapped with the bytes

  double peer_bytes_per_s = 0;
  Nanos peer_latency = 0;

  Nanos device_allocation_time = 0;  // host time of one allocation from the system (a segment)
  Nanos pinned_allocation_time = 0;  // host time of one pinned allocation, and per byte below
  double pinned_bytes_per_s = 1e10;  // rate at which pages are pinned

  double flops(Precision precision) const;  // efficiency included
};

SWAPLINE_SIM_API const std::vector<DeviceSpec>& presets();
// Throws std::invalid_argument naming the presets there are.
SWAPLINE_SIM_API const DeviceSpec& preset(std::string_view name);

}  // namespace swapline::sim
