// Storages of the simulated device: a kind of their own, as torch_npu has one. It keeps a
// description of the tensor that it was made for, and whoever takes any storage for one of these
// finds out.
#pragma once

#include "sim/export.h"

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

namespace swapline::sim {

// What a storage was made for: the first tensor that looked at it.
struct StorageDescription {
  at::ScalarType dtype = at::kByte;
  std::vector<int64_t> sizes;

  bool operator==(const StorageDescription&) const = default;
};

// A storage of the device's kind over `memory`.
c10::Storage make_device_storage(c10::DataPtr memory, size_t bytes);

// nullopt: it is of another kind, or nobody has looked at it.
SWAPLINE_SIM_API std::optional<StorageDescription> description_of(const c10::Storage& storage);
// `tensor` looks at its storage: the first look describes it.
void describe(const at::Tensor& tensor);

// Memory of a device in a storage of another kind: torch_npu would read past its end. Throws
// c10::Error, naming `op`.
void check_kind(const c10::Storage& storage, const char* op);

}  // namespace swapline::sim
