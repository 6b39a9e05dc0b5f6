// The schedule of the per-tensor swap optimizers, to compare with: torchtitan-npu's, and
// MindSpeed's, which is the same.
#pragma once

#include "bench/optimizer_bench_setup.h"

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::bench {

struct PerTensorResult {
  double step_ms = 0;      // of a synced step: start of the first copy in to end of the last out
  double unsynced_ms = 0;  // mean
  double held_mib = 0;     // most that steps held beyond parameters and gradients
  double copies_each_way = 0;  // per step
  int64_t num_races = 0;
  // Parameters and states at the end, on the CPU; empty in a dry run.
  std::vector<at::Tensor> tensors;
};

// Parameters are taken in slices of at most their elements / times, never fewer than one. Before a
// slice compute and the way in wait for everything on the way out; then each parameter's states
// come in by one copy each, and each parameter is updated by its own launch and stored. The host
// never waits inside a step, and frees a parameter's states when their copies out are enqueued:
// the barrier makes that the memory in use on the device. Needs a machine without late copies,
// which poison memory that is freed under a copy.
PerTensorResult run_per_tensor(const Sizes& sizes, int64_t times, bool dry_run = false);

}  // namespace swapline::bench
