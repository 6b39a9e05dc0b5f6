// What goes wrong on purpose. Counts start when the faults are set: 0 means the next one.
#pragma once

#include "sim/export.h"

#include <cstdint>
#include <stdexcept>

namespace swapline::sim {

struct Faults {
  int64_t fail_device_allocation = -1;  // this allocation on a device fails; -1: none
  int64_t fail_pinned_allocation = -1;  // this pinned allocation fails
  int64_t fail_copy = -1;               // this copy between host and device fails
  int64_t fail_launch = -1;             // this operator fails, before it touches anything
  bool lose_devices = false;            // every call on a device fails from now on, queries too
  double copy_slowdown = 1;             // every copy's bytes take this many times longer
  double copy_jitter = 0;               // and up to this share more, drawn from `seed`
  uint64_t seed = 0;
};

// A copy that was told to fail.
class SWAPLINE_SIM_API CopyError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// An operator that was told to fail.
class SWAPLINE_SIM_API LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A device that was told to be lost, as after an illegal access.
class SWAPLINE_SIM_API DeviceLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace swapline::sim
