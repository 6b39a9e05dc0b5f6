// What the files of the fake libascendcl.so share. The declarations that they implement come from
// the headers in torch_npu's wheel.
#pragma once

#include "harness/machine/vendor.h"

#include <acl/acl.h>

namespace swapline::harness {

// Of the calling thread; -1: none was set yet.
int current_device();
inline int device_or_first() {
  return current_device() < 0 ? 0 : current_device();
}

inline Event& event_of(aclrtEvent handle) {
  return *static_cast<Event*>(handle);
}

}  // namespace swapline::harness

#define ACL_FUNCTION extern "C" __attribute__((visibility("default")))

// Begins a call that works on the machine: takes the lock, and fails when the device is broken, as
// every call does after a fault.
#define ON_MACHINE                         \
  const swapline::harness::Locked machine; \
  if (machine->is_broken) {                \
    return ACL_ERROR_RT_AICORE_EXCEPTION;  \
  }
