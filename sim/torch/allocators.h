// The allocators of the simulated device, as torch sees them: device memory and pinned host memory.
#pragma once

#include "sim/export.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

namespace swapline::sim {

c10::DeviceAllocator* device_allocator();
at::HostAllocator* pinned_allocator();

// Device memory for a tensor, on the device's current stream.
// Throws c10::OutOfMemoryError.
c10::DataPtr allocate_on(int device, size_t bytes);

// Whether allocate_on() made it: the common case, told without a look into the machine.
bool is_device_memory(const c10::DataPtr& data);

// Changes the size of a device storage in place, keeping what fits.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

}  // namespace swapline::sim
