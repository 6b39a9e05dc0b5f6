#include "sim/torch/alias.h"

#include "sim/torch/allocators.h"
#include "sim/torch/sim.h"
#include "sim/torch/storage.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

namespace swapline::sim {
namespace {

void release(void* storage) {
  c10::raw::intrusive_ptr::decref(static_cast<c10::StorageImpl*>(storage));
}

void copy_geometry(const at::Tensor& from, c10::TensorImpl& to) {
  to.set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  if (from.unsafeGetTensorImpl()->is_wrapped_number()) {
    to.set_wrapped_number(true);
  }
  if (from.is_conj()) {
    to._set_conj(true);
  }
  if (from.is_neg()) {
    to._set_neg(true);
  }
}

int64_t last_element(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return last;
}

// Only memory that was not allocated for a device tensor can be anything else.
void check_is_reachable(const at::Tensor& tensor, size_t bytes, bool is_write, const char* op) {
  if (is_device_memory(tensor.storage().data_ptr())) {
    return;
  }
  const void* data = tensor.const_data_ptr();
  TORCH_CHECK(simulator().is_pinned(data, bytes) || simulator().device_of(data) != kHost,
              op,
              is_write ? " writes" : " reads",
              " a tensor of shape ",
              tensor.sizes(),
              " on ",
              tensor.device(),
              " whose memory at ",
              data,
              " is neither a device's nor pinned: a device addresses host memory only while it is "
              "allocated by the device's pinned allocator");
}

}  // namespace

c10::Storage alias_storage(const c10::Storage& storage) {
  c10::StorageImpl* owner = storage.unsafeGetStorageImpl();
  c10::raw::intrusive_ptr::incref(owner);
  c10::DataPtr data(owner->mutable_data(), owner, &release, c10::kCPU);
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                            owner->nbytes(),
                                                            std::move(data),
                                                            c10::GetCPUAllocator(),
                                                            /*resizable=*/true));
}

at::Tensor alias_tensor(const at::Tensor& tensor, const c10::Storage& storage) {
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  copy_geometry(tensor, *alias.unsafeGetTensorImpl());
  return alias;
}

at::Tensor meta_alias(const at::Tensor& tensor) {
  at::Tensor alias = at::empty_strided(
      tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta).requires_grad(false));
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    alias.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return alias;
}

at::Tensor device_view(const at::Tensor& like, const c10::Storage& storage) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.dtype());
  copy_geometry(like, *view.unsafeGetTensorImpl());
  describe(view);
  return view;
}

at::Tensor to_new_device_tensor(const at::Tensor& like, int index) {
  const size_t itemsize = like.dtype().itemsize();
  const size_t bytes =
      like.is_meta()
          ? (like.numel() == 0 ? 0 : (like.storage_offset() + last_element(like) + 1) * itemsize)
          : like.storage().nbytes();
  c10::DataPtr data = allocate_on(index, bytes);
  if (!like.is_meta() && bytes > 0) {
    std::memcpy(data.get(), like.storage().data(), bytes);
  }
  return device_view(like, make_device_storage(std::move(data), bytes));
}

bool is_mapped(const at::Tensor& tensor) {
  return !is_device_memory(tensor.storage().data_ptr()) && tensor.numel() > 0 &&
         simulator().is_pinned(tensor.const_data_ptr());
}

Access access_of(const at::Tensor& tensor, bool is_write, const char* op) {
  if (tensor.numel() == 0) {
    return {};
  }
  check_kind(tensor.storage(), op);
  const size_t itemsize = tensor.dtype().itemsize();
  const auto first = static_cast<size_t>(tensor.storage_offset());
  const auto last = first + static_cast<size_t>(last_element(tensor));
  const size_t held = tensor.storage().nbytes();
  TORCH_CHECK((last + 1) * itemsize <= held,
              op,
              is_write ? " writes" : " reads",
              " a tensor of shape ",
              tensor.sizes(),
              " whose storage holds ",
              held,
              " of ",
              (last + 1) * itemsize,
              " bytes: it was swapped out and not brought back before its use");
  const auto base = reinterpret_cast<uintptr_t>(tensor.storage().data());
  check_is_reachable(tensor, (last - first + 1) * itemsize, is_write, op);
  return {base + first * itemsize, base + (last + 1) * itemsize, is_write};
}

}  // namespace swapline::sim
