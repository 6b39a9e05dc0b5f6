// Tensors made, resized and looked at in other ways: what no CPU kernel can do for a device.
#include "sim/torch/alias.h"
#include "sim/torch/allocators.h"
#include "sim/torch/idle.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"
#include "sim/torch/storage.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Resize.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/StorageImpl.h>
#include <torch/library.h>

namespace swapline::sim {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

int index_of(std::optional<c10::Device> device) {
  return device && device->has_index() ? device->index() : current_device();
}

// Makes `device` current for one allocation.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : old_(current_device()) { set_current_device(device); }
  ~CurrentDevice() { set_current_device(old_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int old_;
};

// Memory for a new tensor on the current device.
at::Tensor make(size_t bytes, at::ScalarType dtype) {
  return at::detail::make_tensor<c10::TensorImpl>(
      make_device_storage(allocate_on(current_device(), bytes), bytes),
      kKeys,
      c10::scalarTypeToTypeMeta(dtype));
}

at::Tensor empty(c10::IntArrayRef size,
                 std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout,
                 std::optional<c10::Device> device,
                 std::optional<bool> pin_memory,
                 std::optional<at::MemoryFormat> memory_format) {
  check_loaded_in_time();
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided,
              "the simulated device has strided tensors only");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "only CPU tensors can be pinned");
  const CurrentDevice guard(index_of(device));
  at::detail::check_size_nonnegative(size);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  at::Tensor made =
      make(at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type)), type);
  made.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (memory_format && *memory_format != at::MemoryFormat::Contiguous) {
    made.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  describe(made);
  return made;
}

at::Tensor empty_strided(c10::IntArrayRef size,
                         c10::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> layout,
                         std::optional<c10::Device> device,
                         std::optional<bool> pin_memory) {
  check_loaded_in_time();
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "only CPU tensors can be pinned");
  const CurrentDevice guard(index_of(device));
  at::detail::check_size_nonnegative(size);
  const at::ScalarType type = c10::dtype_or_default(dtype);
  at::Tensor made =
      make(at::detail::computeStorageNbytes(size, stride, c10::elementSize(type)), type);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  describe(made);
  return made;
}

const at::Tensor& resize_(const at::Tensor& self,
                          c10::IntArrayRef size,
                          std::optional<at::MemoryFormat> memory_format) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (memory_format && *memory_format != at::MemoryFormat::Preserve) {
    impl->empty_tensor_restride(*memory_format);
  }
  const size_t needed =
      static_cast<size_t>(self.storage_offset() + self.numel()) * self.dtype().itemsize();
  if (self.numel() > 0 && needed > self.storage().nbytes()) {
    resize_storage(*self.storage().unsafeGetStorageImpl(), needed);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self,
                        at::Storage source,
                        int64_t offset,
                        c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  if (stride.empty() && !size.empty()) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride, offset);
  }
  describe(self);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const auto length = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {length}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(
      self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_storage(
      self, make_device_storage(allocate_on(self.device().index(), 0), 0), 0, {0}, {1});
}

bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  const auto is_plain = [](const at::Tensor& tensor) {
    return tensor.device().is_cpu() || tensor.device().is_privateuseone();
  };
  return is_plain(self) && is_plain(from);
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
  m.impl("record_stream", &record_stream);
}

}  // namespace
}  // namespace swapline::sim
