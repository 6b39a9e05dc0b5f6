// Pinned host memory as a device's kernels see it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace swapline::detail {

// Why kernels of `device` cannot address `pinned`, memory of the device's pinned allocator; empty:
// they can.
std::string why_not_mapped(const void* pinned, c10::Device device);

// The bytes from `pinned` on as a tensor [bytes] of kByte on `device`, not counted among its
// memory. Keeps `owner` alive. Requires: why_not_mapped() is empty. The host must wait for kernels
// that used it before it touches the bytes or lets go of them.
at::Tensor map_pinned(void* pinned, size_t bytes, c10::Device device, std::shared_ptr<void> owner);

}  // namespace swapline::detail
