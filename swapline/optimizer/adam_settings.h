// What the user sets: hyperparameters of a group, and where the states live.
#pragma once

#include "swapline/export.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

// A group's hyperparameters, as in torch.optim. May be changed between steps; step() reads them.
struct AdamSettings {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  // AdamW; false: Adam, whose weight decay is added to the gradient
  bool amsgrad = false;   // may be switched off later, not on: it has a third state
  bool maximize = false;
};

struct AdamGroup {
  std::vector<at::Tensor> params;
  AdamSettings settings = {};
};

enum class StatePlacement {
  kDevice,  // resident: the plain optimizer
  kSwap,    // in pinned host memory, streamed through the device in step()
};

struct AdamOptions {
  // Behaviour
  StatePlacement placement = StatePlacement::kSwap;
  // The device memory that step() uses for states is at most their total / times, and at least what
  // the pipeline needs. A bound, not an order: less is used where that is faster.
  int64_t swap_optimizer_times = 16;
  size_t swap_optimizer_arena_bytes = 0;  // the same bound in bytes; 0: none

  // Performance
  int num_slots = 3;               // chunks on the device at once, at least 3
  double link_bytes_per_s = 25e9;  // per direction; with the next one it sets the size of a chunk
  double copy_latency_s = 10e-6;   // what a copy takes beside its bytes
};

// Throws c10::Error naming the option or hyperparameter and what is allowed.
SWAPLINE_API void check(const AdamSettings& settings);
SWAPLINE_API void check(const AdamOptions& options);

}  // namespace swapline
