// Private torch API, each with its reason.
#include "swapline/swap/device_memory.h"

#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::detail {
namespace {

// Backends may have storages of a kind of their own and cast to it unasked, as torch_npu does: only
// this call makes one of the device's kind.
c10::Storage make_storage(c10::DataPtr memory,
                          size_t bytes,
                          c10::Allocator* allocator,
                          c10::Device device) {
  return c10::Storage(c10::make_storage_impl(c10::StorageImpl::use_byte_size_t(),
                                             bytes,
                                             std::move(memory),
                                             allocator,
                                             /*resizable=*/true,
                                             device));
}

}  // namespace

void note_last_use(const PooledStorage& memory, const c10::Stream& last_use) {
  if (memory.storage && memory.storage.nbytes() > 0 && memory.pool != last_use) {
    c10::impl::VirtualGuardImpl(memory.storage.device_type())
        .recordDataPtrOnStream(memory.storage.data_ptr(), last_use);
  }
}

DeviceMemory::DeviceMemory(const at::Tensor& tensor, Release release)
    : release_(release),
      view_(tensor),
      bytes_(tensor.storage().nbytes()),
      allocator_(tensor.storage().allocator()),
      device_(tensor.device()),
      storage_(tensor.storage()) {}

PooledStorage DeviceMemory::let_go(const c10::Stream& last_use) {
  note_last_use(memory(), last_use);
  const auto pool = std::exchange(pool_, std::nullopt);
  if (release_ == Release::kDrop) {
    return {std::exchange(storage_, c10::Storage()), pool};
  }
  // No public call takes memory out from under live tensors without copying it.
  c10::StorageImpl* impl = storage_.unsafeGetStorageImpl();
  c10::DataPtr memory = impl->set_data_ptr(c10::DataPtr(nullptr, impl->device()));
  impl->set_nbytes(0);
  return {make_storage(std::move(memory), bytes_, allocator_, device_), pool};
}

PooledStorage DeviceMemory::allocate() const {
  const c10::DeviceGuard on_device(device_);
  c10::Storage memory = make_storage(allocator_->allocate(bytes_), bytes_, allocator_, device_);
  // Looked at as the tensor it will be before it is looked at as bytes: torch_npu describes a
  // storage by the first look.
  view_.over(memory);
  return {std::move(memory), c10::impl::VirtualGuardImpl(device_.type()).getStream(device_)};
}

void DeviceMemory::put_back(const PooledStorage& memory) {
  pool_ = memory.pool;
  if (release_ == Release::kDrop) {
    storage_ = memory.storage;
    return;
  }
  // The counterpart of let_go(): the tensors see the same StorageImpl filled again.
  c10::StorageImpl* from = memory.storage.unsafeGetStorageImpl();
  c10::StorageImpl* impl = storage_.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(from->set_data_ptr(c10::DataPtr(nullptr, from->device())));
  from->set_nbytes(0);
  impl->set_nbytes(bytes_);
}

}  // namespace swapline::detail
