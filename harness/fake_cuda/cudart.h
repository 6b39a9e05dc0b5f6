// What the files of the fake libcudart.so share.
#pragma once

#include "harness/machine/vendor.h"

#include <cuda_runtime_api.h>

namespace swapline::harness {

// Of the calling thread, as in CUDA.
int current_device();
// Noted as the thread's last error.
cudaError_t failed(cudaError_t error);

inline Event& event_of(cudaEvent_t handle) {
  return *reinterpret_cast<Event*>(handle);
}

}  // namespace swapline::harness

// Begins a call that works on the machine: takes the lock, and fails when the device is broken, as
// every call does after an illegal access.
#define ON_MACHINE                                             \
  const swapline::harness::Locked machine;                     \
  if (machine->is_broken) {                                    \
    return swapline::harness::failed(cudaErrorIllegalAddress); \
  }
