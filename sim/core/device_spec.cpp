#include "sim/core/device_spec.h"

#include <stdexcept>

namespace swapline::sim {
namespace {

constexpr size_t kGiB = size_t{1} << 30;
constexpr size_t kMiB = size_t{1} << 20;
constexpr double kGB = 1e9;
constexpr double kTB = 1e12;
constexpr double kTera = 1e12;
constexpr Nanos kMicro = 1000;

// Shares of peak that large matrix products reach in practice: 0.5 to 0.7 in public training
// reports. One figure for all, so that presets differ only by what their makers state.
constexpr double kEfficiency = 0.6;

// Latencies that makers do not state; of the order public profiles show.
DeviceSpec datacenter_defaults() {
  DeviceSpec spec;
  spec.compute_efficiency = kEfficiency;
  spec.launch_latency = 2 * kMicro;
  spec.host_op_time = 4 * kMicro;
  spec.copy_latency = 10 * kMicro;
  spec.peer_latency = 10 * kMicro;
  spec.device_allocation_time = 100 * kMicro;
  spec.pinned_allocation_time = 50 * kMicro;
  spec.pinned_bytes_per_s = 4 * kGB;
  return spec;
}

DeviceSpec ascend_910b() {
  DeviceSpec spec = datacenter_defaults();
  spec.name = "ascend-910b";
  spec.source =
      "Atlas 800T A2 data sheet: 64 GB HBM at 1.6 TB/s, 376 TFLOPS FP16, 94 FP32; "
      "PCIe 4.0 x16; HCCS 56 GB/s a link, 7 links";
  spec.memory_bytes = 64 * kGiB;
  spec.memory_bytes_per_s = 1.6 * kTB;
  spec.float16_flops = 376 * kTera;
  spec.float32_flops = 94 * kTera;
  spec.float64_flops = 1 * kTera;
  spec.h2d_bytes_per_s = 25 * kGB;
  spec.d2h_bytes_per_s = 25 * kGB;
  spec.peer_bytes_per_s = 7 * 28 * kGB;
  return spec;
}

DeviceSpec a100_80g() {
  DeviceSpec spec = datacenter_defaults();
  spec.name = "a100-80g";
  spec.source =
      "NVIDIA A100 80GB SXM data sheet: 2.039 TB/s, 312 TFLOPS BF16, 19.5 FP32; PCIe 4.0 "
      "x16; NVLink 600 GB/s both ways";
  spec.memory_bytes = 80 * kGiB;
  spec.memory_bytes_per_s = 2.039 * kTB;
  spec.float16_flops = 312 * kTera;
  spec.float32_flops = 19.5 * kTera;
  spec.float64_flops = 9.7 * kTera;
  spec.h2d_bytes_per_s = 25 * kGB;
  spec.d2h_bytes_per_s = 25 * kGB;
  spec.peer_bytes_per_s = 300 * kGB;
  return spec;
}

DeviceSpec h100_sxm() {
  DeviceSpec spec = datacenter_defaults();
  spec.name = "h100-sxm";
  spec.source =
      "NVIDIA H100 SXM data sheet: 80 GB at 3.35 TB/s, 989 TFLOPS BF16, 67 FP32; PCIe 5.0 "
      "x16, about 55 GB/s reached; NVLink 900 GB/s both ways";
  spec.memory_bytes = 80 * kGiB;
  spec.memory_bytes_per_s = 3.35 * kTB;
  spec.float16_flops = 989 * kTera;
  spec.float32_flops = 67 * kTera;
  spec.float64_flops = 34 * kTera;
  spec.h2d_bytes_per_s = 55 * kGB;
  spec.d2h_bytes_per_s = 55 * kGB;
  spec.peer_bytes_per_s = 450 * kGB;
  return spec;
}

DeviceSpec h200_sxm() {
  DeviceSpec spec = h100_sxm();
  spec.name = "h200-sxm";
  spec.source = "NVIDIA H200 SXM data sheet: 141 GB at 4.8 TB/s; arithmetic and links as H100";
  spec.memory_bytes = size_t{141} * 1000 * 1000 * 1000;
  spec.memory_bytes_per_s = 4.8 * kTB;
  return spec;
}

DeviceSpec gh200() {
  DeviceSpec spec = h100_sxm();
  spec.name = "gh200";
  spec.source =
      "NVIDIA GH200 data sheet: 96 GB HBM3 at 4 TB/s; NVLink-C2C as measured in public: "
      "about 415 GB/s to the device, 170 GB/s to the host";
  spec.memory_bytes = 96 * kGiB;
  spec.memory_bytes_per_s = 4 * kTB;
  spec.h2d_bytes_per_s = 415 * kGB;
  spec.d2h_bytes_per_s = 170 * kGB;
  return spec;
}

DeviceSpec rtx_4090() {
  DeviceSpec spec = datacenter_defaults();
  spec.name = "rtx-4090";
  spec.source =
      "NVIDIA Ada whitepaper: 24 GB at 1.008 TB/s, 165 TFLOPS BF16 with FP32 sums, 82.6 "
      "FP32; PCIe 4.0 x16; no NVLink, peers go over PCIe";
  spec.memory_bytes = 24 * kGiB;
  spec.memory_bytes_per_s = 1.008 * kTB;
  spec.float16_flops = 165 * kTera;
  spec.float32_flops = 82.6 * kTera;
  spec.float64_flops = 1.3 * kTera;
  spec.h2d_bytes_per_s = 25 * kGB;
  spec.d2h_bytes_per_s = 25 * kGB;
  spec.peer_bytes_per_s = 20 * kGB;
  return spec;
}

// For tests: small, and slow enough that copies and launches of small tensors are seen.
DeviceSpec tiny() {
  DeviceSpec spec;
  spec.name = "tiny";
  spec.source = "made up for tests";
  spec.memory_bytes = 256 * kMiB;
  spec.memory_bytes_per_s = 100 * kGB;
  spec.float16_flops = 2 * kTera;
  spec.float32_flops = 1 * kTera;
  spec.float64_flops = 0.5 * kTera;
  spec.launch_latency = 2 * kMicro;
  spec.host_op_time = 1 * kMicro;
  spec.h2d_bytes_per_s = 10 * kGB;
  spec.d2h_bytes_per_s = 10 * kGB;
  spec.copy_latency = 5 * kMicro;
  spec.peer_bytes_per_s = 10 * kGB;
  spec.peer_latency = 5 * kMicro;
  spec.device_allocation_time = 10 * kMicro;
  spec.pinned_allocation_time = 10 * kMicro;
  spec.pinned_bytes_per_s = 10 * kGB;
  return spec;
}

// The cost model under which other systems were measured; the benches compare against their
// figures.
DeviceSpec trial() {
  DeviceSpec spec;
  spec.name = "trial";
  spec.source =
      "the cost model of the comparison: 300 TFLOP/s, 1.6 TB/s, 25 GB/s each way and 10 us "
      "a copy, 5 us a launch, a host that never holds the device up";
  spec.memory_bytes = 64 * kGiB;
  spec.memory_bytes_per_s = 1.6 * kTB;
  spec.float16_flops = 300 * kTera;
  spec.float32_flops = 300 * kTera;
  spec.float64_flops = 300 * kTera;
  spec.launch_latency = 5 * kMicro;
  spec.h2d_bytes_per_s = 25 * kGB;
  spec.d2h_bytes_per_s = 25 * kGB;
  spec.copy_latency = 10 * kMicro;
  spec.peer_bytes_per_s = 25 * kGB;
  spec.peer_latency = 10 * kMicro;
  return spec;
}

}  // namespace

double DeviceSpec::flops(Precision precision) const {
  switch (precision) {
    case Precision::kFloat16:
      return float16_flops * compute_efficiency;
    case Precision::kFloat32:
      return float32_flops * compute_efficiency;
    case Precision::kFloat64:
      return float64_flops * compute_efficiency;
  }
  return float32_flops * compute_efficiency;
}

const std::vector<DeviceSpec>& presets() {
  static const std::vector<DeviceSpec> all = {
      ascend_910b(), a100_80g(), h100_sxm(), h200_sxm(), gh200(), rtx_4090(), tiny(), trial()};
  return all;
}

const DeviceSpec& preset(std::string_view name) {
  std::string known;
  for (const DeviceSpec& spec : presets()) {
    if (spec.name == name) {
      return spec;
    }
    known += (known.empty() ? "" : ", ") + spec.name;
  }
  throw std::invalid_argument("unknown device preset '" + std::string(name) +
                              "'; there are: " + known);
}

}  // namespace swapline::sim
