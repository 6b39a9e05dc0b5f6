// CPU and Meta stand-ins for device tensors. A stand-in shares the device tensor's memory (or has
// none), so CPU kernels work on it without a copy.
#pragma once

#include "sim/core/simulator.h"
#include "sim/export.h"

#include <ATen/core/Tensor.h>

namespace swapline::sim {

inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

// A CPU storage over the device storage's bytes; keeps the device storage alive.
SWAPLINE_SIM_API c10::Storage alias_storage(const c10::Storage& storage);
// A CPU tensor with the geometry of `tensor` over `storage`.
SWAPLINE_SIM_API at::Tensor alias_tensor(const at::Tensor& tensor, const c10::Storage& storage);
inline at::Tensor cpu_alias(const at::Tensor& tensor) {
  return alias_tensor(tensor, alias_storage(tensor.storage()));
}
// A Meta tensor with the geometry of `tensor`.
at::Tensor meta_alias(const at::Tensor& tensor);

// A device tensor over `storage` with the geometry of `like`.
at::Tensor device_view(const at::Tensor& like, const c10::Storage& storage);
// A new device tensor with the geometry of `like`; its bytes are copied from it unless it is Meta.
at::Tensor to_new_device_tensor(const at::Tensor& like, int device);

// The bytes between a tensor's first and last element. Throws c10::Error, naming `op`, when the
// storage does not hold them: the tensor was swapped out and not brought back; and when they lie
// neither on a device nor in pinned memory.
SWAPLINE_SIM_API Access access_of(const at::Tensor& tensor, bool is_write, const char* op);

// The bytes lie in pinned host memory, which a kernel reaches over the link.
bool is_mapped(const at::Tensor& tensor);

}  // namespace swapline::sim
