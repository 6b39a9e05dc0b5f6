// Where an optimizer's states live and how they move: what all update rules have in common.
#pragma once

#include "swapline/export.h"

#include <cstddef>
#include <cstdint>

namespace swapline {

enum class StatePlacement {
  kDevice,  // resident: the plain optimizer
  kSwap,    // in pinned host memory, streamed through the device in step()
};

struct OptimizerOptions {
  // Behaviour
  StatePlacement placement = StatePlacement::kSwap;
  // The device memory that step() uses for states is at most their total / times, and at least what
  // the pipeline needs. A bound, not an order: less is used where that is faster.
  int64_t swap_optimizer_times = 16;
  size_t swap_optimizer_arena_bytes = 0;  // the same bound in bytes; 0: none
  // The share of the states' bytes that is swapped, from 0 to 1. The rest, whole chunks, stays on
  // the device from its first update on, beside the bounds above, until drain() or state(); it has
  // its place in host memory all the same. Where the device has no room for it, it is swapped.
  double swap_optimizer_fraction = 1;
  // Parameters with fewer bytes of states than this keep them on the device. Small ones travel
  // together, so swapping them costs little: this is for those that others read on the device.
  size_t swap_optimizer_min_bytes = 0;
  // At most so many bytes of states, the first ones, are mapped: they stay in pinned host memory
  // and the update's kernel itself reads and writes them there, over the link. No copies, no device
  // memory, but nothing else computes meanwhile. What goes beyond is placed as if it were all.
  // SIZE_MAX: all; 0: none. Needs a SwapContext. Where the device cannot address host memory they
  // are swapped, which is said once.
  size_t virtual_optimizer_bytes = 0;

  // Performance
  int num_slots = 3;               // chunks on the device at once, at least 3
  double link_bytes_per_s = 25e9;  // per direction; with the next one it sets the size of a chunk
  double copy_latency_s = 10e-6;   // what a copy takes beside its bytes
};

// Throws c10::Error naming the option and what is allowed.
SWAPLINE_API void check(const OptimizerOptions& options);

}  // namespace swapline
