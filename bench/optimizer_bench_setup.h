// What the optimizer's bench runs on: workloads, the machine, parameters with gradients.
#pragma once

#include "swapline/optimizer/adam_settings.h"

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::bench {

inline constexpr double kMiB = 1 << 20;
inline constexpr int kNumSynced = 2;    // steps with the device idle before each
inline constexpr int kNumUnsynced = 4;  // steps that the host enqueues without waiting

using Sizes = std::vector<std::vector<int64_t>>;

// A workload at one `times`. Most: what is claimed for ours; 0: nothing is.
struct Point {
  int64_t times;
  double published_ms;  // torchtitan-npu run unmodified under the same cost model; 0: not known
  double most_ms;
  double most_mib;  // also given to ours as its bound in bytes
};

struct Workload {
  std::string name;
  Sizes sizes;
  std::vector<Point> points;
};

std::vector<Workload> workloads();
Sizes llama_8b();

// A fresh simulated machine with one device.
void use_machine(const std::string& preset, bool dry_run, bool late_copies = false);

// fp32 parameters with gradients, the same values at each call (none in a dry run).
AdamGroup make_group(const Sizes& sizes, bool dry_run);

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace swapline::bench
