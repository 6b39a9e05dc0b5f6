#include "sim/torch/launch.h"

#include "sim/torch/allocators.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"

#include <cstring>

#include <c10/util/Exception.h>

namespace swapline::sim {

Launch::Launch(const char* name, int device)
    : name_(name),
      device_(device),
      stream_(current_stream(device)),
      is_dry_(simulator().is_dry_run()) {}

void Launch::set_precision(c10::ScalarType dtype) {
  if (!has_precision_ && c10::isFloatingType(dtype)) {
    cost_.precision = precision_of(dtype);
    has_precision_ = true;
  }
}

at::Tensor Launch::stand_in(const at::Tensor& tensor, bool reads, bool writes) {
  if (!is_on_device(tensor)) {
    return tensor;
  }
  TORCH_CHECK(tensor.device().index() == device_,
              name_,
              ": tensors on sim:",
              device_,
              " and ",
              tensor.device(),
              "; they must be on one device");
  set_precision(tensor.scalar_type());
  if (reads || writes) {
    accesses_.push_back(access_of(tensor, writes, name_));
    add_cost(tensor, reads, writes);
  }
  at::Tensor alias =
      is_dry_ ? meta_alias(tensor) : alias_tensor(tensor, alias_of(tensor.storage()));
  arguments_.push_back({tensor, alias, writes});
  return alias;
}

void Launch::add_cost(const at::Tensor& tensor, bool reads, bool writes) {
  const double bytes = bytes_of(tensor);
  if (is_mapped(tensor)) {
    cost_.mapped_bytes_in += reads ? bytes : 0;
    cost_.mapped_bytes_out += writes ? bytes : 0;
  } else {
    cost_.bytes += reads && writes ? 2 * bytes : bytes;
  }
}

void Launch::set_gathered(double result_bytes) {
  const bool is_from_host = cost_.mapped_bytes_in > 0;
  cost_.mapped_bytes_in = is_from_host ? result_bytes : 0;
  cost_.bytes = is_from_host ? result_bytes : 2 * result_bytes;
}

const c10::Storage& Launch::alias_of(const c10::Storage& storage) {
  c10::StorageImpl* original = storage.unsafeGetStorageImpl();
  for (const SharedStorage& shared : storages_) {
    if (shared.original == original) {
      return shared.alias;
    }
  }
  storages_.push_back({original, alias_storage(storage)});
  return storages_.back().alias;
}

void Launch::begin() {
  simulator().begin_op(device_, stream_, name_, {accesses_.data(), accesses_.size()});
}

at::Tensor Launch::out(const at::Tensor& result) {
  if (!result.defined() || is_on_device(result)) {
    return result;
  }
  for (const Argument& argument : arguments_) {
    if (argument.alias.is_same(result)) {
      return argument.original;
    }
  }
  const c10::StorageImpl* storage = result.storage().unsafeGetStorageImpl();
  for (const Argument& argument : arguments_) {
    if (argument.alias.storage().unsafeGetStorageImpl() == storage) {
      return device_view(result, argument.original.storage());
    }
  }
  at::Tensor moved = to_new_device_tensor(result, device_);
  outputs_.push_back(access_of(moved, true, name_));
  cost_.bytes += bytes_of(moved);
  set_precision(moved.scalar_type());
  return moved;
}

void Launch::finish_written() {
  for (const Argument& argument : arguments_) {
    if (argument.is_written) {
      carry_back(argument);
    }
  }
}

void Launch::carry_back(const Argument& argument) {
  const at::Tensor& alias = argument.alias;
  const at::Tensor& original = argument.original;
  c10::StorageImpl& storage = *original.storage().unsafeGetStorageImpl();
  const size_t needed = alias.storage().nbytes();
  const bool moved = !is_dry_ && alias.storage().data() != storage.data();
  if (moved || (is_dry_ && needed > storage.nbytes())) {
    c10::DataPtr fresh = allocate_on(device_, needed);
    if (!is_dry_) {
      std::memcpy(fresh.get(), alias.storage().data(), needed);
    }
    storage.set_data_ptr_noswap(std::move(fresh));
    storage.set_nbytes(needed);
  }
  if (original.sizes() != alias.sizes() || original.strides() != alias.strides()) {
    original.unsafeGetTensorImpl()->set_sizes_and_strides(
        alias.sizes(), alias.strides(), alias.storage_offset());
  }
  if (moved) {
    outputs_.push_back(access_of(original, true, name_));
  }
}

void Launch::end(double flops) {
  cost_.flops = flops;
  simulator().end_op(device_, stream_, name_, cost_, {outputs_.data(), outputs_.size()});
}

}  // namespace swapline::sim
