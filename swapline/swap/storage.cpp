// Private torch API, each with its reason.
#include "swapline/swap/storage.h"

#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

namespace swapline::detail {

TensorView::TensorView(const at::Tensor& tensor)
    : sizes_(tensor.sizes().begin(), tensor.sizes().end()),
      strides_(tensor.strides().begin(), tensor.strides().end()),
      offset_(tensor.storage_offset()),
      options_(tensor.options()),
      is_conj_(tensor.is_conj()),
      is_neg_(tensor.is_neg()) {}

at::Tensor TensorView::over(const c10::Storage& storage) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor tensor =
      at::empty({0}, options_.device(storage.device())).set_(storage, offset_, sizes_, strides_);
  // set_ looks at plain bytes; these bits say how they are read.
  tensor._set_conj(is_conj_);
  tensor._set_neg(is_neg_);
  return tensor;
}

c10::Storage allocate_storage(c10::Allocator* allocator, c10::Device device, size_t bytes) {
  const c10::DeviceGuard on_device(device);
  return {c10::Storage::use_byte_size_t(),
          bytes,
          allocator->allocate(bytes),
          allocator,
          /*resizable=*/true};
}

c10::Storage empty_storage(const c10::Storage& storage) {
  // No public call takes memory out from under live tensors without copying it.
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const size_t bytes = impl->nbytes();
  c10::DataPtr memory = impl->set_data_ptr(c10::DataPtr(nullptr, impl->device()));
  impl->set_nbytes(0);
  return {c10::Storage::use_byte_size_t(),
          bytes,
          std::move(memory),
          impl->allocator(),
          /*resizable=*/true};
}

void refill_storage(const c10::Storage& storage, const c10::Storage& memory) {
  // The counterpart of empty_storage: the tensors see the same StorageImpl filled again.
  c10::StorageImpl* from = memory.unsafeGetStorageImpl();
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const size_t bytes = from->nbytes();
  impl->set_data_ptr_noswap(from->set_data_ptr(c10::DataPtr(nullptr, from->device())));
  from->set_nbytes(0);
  impl->set_nbytes(bytes);
}

}  // namespace swapline::detail
