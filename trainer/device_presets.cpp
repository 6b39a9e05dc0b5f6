// The accelerators that the simulator can be: figures, without the simulator itself.
#include "sim/core/device_spec.h"
#include "trainer/device.h"

#include <cstdio>

namespace swapline::trainer {

std::vector<std::string> device_preset_names() {
  std::vector<std::string> names;
  for (const sim::DeviceSpec& spec : sim::presets()) {
    names.push_back(spec.name);
  }
  return names;
}

std::string device_preset_table() {
  std::string table =
      "preset          memory    fp32    bf16     HBM      H2D      D2H   source of the figures\n"
      "                   GiB  TFLOPS  TFLOPS    GB/s     GB/s     GB/s\n";
  for (const sim::DeviceSpec& spec : sim::presets()) {
    char row[160];
    std::snprintf(row,
                  sizeof(row),
                  "%-14s %7.2f %7.1f %7.1f %7.0f %8.1f %8.1f   ",
                  spec.name.c_str(),
                  static_cast<double>(spec.memory_bytes) / 0x1p30,
                  spec.float32_flops / 1e12,
                  spec.float16_flops / 1e12,
                  spec.memory_bytes_per_s / 1e9,
                  spec.h2d_bytes_per_s / 1e9,
                  spec.d2h_bytes_per_s / 1e9);
    table += row + spec.source + "\n";
  }
  return table;
}

}  // namespace swapline::trainer
