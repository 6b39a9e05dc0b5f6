#include "sim/torch/storage.h"

#include "sim/torch/allocators.h"

#include <utility>

#include <c10/util/Exception.h>

namespace swapline::sim {
namespace {

struct SimStorageImpl final : c10::StorageImpl {
  using StorageImpl::StorageImpl;
  std::optional<StorageDescription> description;
};

c10::intrusive_ptr<c10::StorageImpl> make(c10::StorageImpl::use_byte_size_t tag,
                                          c10::SymInt bytes,
                                          c10::DataPtr memory,
                                          c10::Allocator* allocator,
                                          bool is_resizable) {
  if (memory == nullptr) {
    memory = allocator->allocate(bytes.expect_int());
  }
  return c10::make_intrusive<SimStorageImpl>(
      tag, std::move(bytes), std::move(memory), allocator, is_resizable);
}

const bool kRegistered = [] {
  c10::SetStorageImplCreate(c10::DeviceType::PrivateUse1, &make);
  return true;
}();

SimStorageImpl* own(const c10::Storage& storage) {
  return dynamic_cast<SimStorageImpl*>(storage.unsafeGetStorageImpl());
}

}  // namespace

c10::Storage make_device_storage(c10::DataPtr memory, size_t bytes) {
  return c10::Storage(c10::make_intrusive<SimStorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                          bytes,
                                                          std::move(memory),
                                                          device_allocator(),
                                                          /*resizable=*/true));
}

std::optional<StorageDescription> description_of(const c10::Storage& storage) {
  const SimStorageImpl* impl = own(storage);
  return impl == nullptr ? std::nullopt : impl->description;
}

void describe(const at::Tensor& tensor) {
  SimStorageImpl* impl = own(tensor.storage());
  if (impl != nullptr && !impl->description) {
    impl->description = {tensor.scalar_type(), tensor.sizes().vec()};
  }
}

void check_kind(const c10::Storage& storage, const char* op) {
  TORCH_CHECK(
      own(storage) != nullptr || !is_device_memory(storage.data_ptr()),
      op,
      ": a storage of the simulated device's memory is not of the device's kind; make it by "
      "c10::make_storage_impl");
}

}  // namespace swapline::sim
