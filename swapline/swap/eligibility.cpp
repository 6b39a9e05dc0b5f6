// The checks, cheapest first: this runs once a layer.
#include "swapline/swap/eligibility.h"

#include <algorithm>
#include <array>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COW.h>

namespace swapline {

// torch_npu may keep a tensor in one of CANN's fractal formats (FRACTAL_NZ and others), whose bytes
// are not those of the tensor's strides: a copy of them would be cast on its way.
bool is_in_private_format(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone()) {
    return false;
  }
  const auto format_of = c10::Dispatcher::singleton().findSchema({"npu::get_npu_format", ""});
  if (!format_of) {
    return false;
  }
  constexpr std::array<int64_t, 4> kPlain = {0, 1, 2, 30};  // NCHW, NHWC, ND, NCDHW
  const int64_t format = format_of->typed<int64_t(const at::Tensor&)>().call(tensor);
  return std::find(kPlain.begin(), kPlain.end(), format) == kPlain.end();
}

namespace {

// Reasons that need no look at the storage; nullptr: none.
const char* refuse_kind(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return "the tensor is undefined";
  }
  if (tensor.is_cpu() || tensor.is_meta()) {
    return "it is not in the memory of a device";
  }
  constexpr c10::DispatchKeySet kWrappers({c10::DispatchKey::Python,
                                           c10::DispatchKey::Functionalize,
                                           c10::DispatchKey::FuncTorchBatched,
                                           c10::DispatchKey::FuncTorchGradWrapper,
                                           c10::DispatchKey::ZeroTensor});
  if (tensor.key_set().has_any(kWrappers)) {
    return "it is a wrapper around other tensors (fake, functional or distributed)";
  }
  if (tensor.is_nested() || tensor.layout() != c10::kStrided || tensor.is_quantized()) {
    return "it is sparse, nested or quantised";
  }
  if (!tensor.has_storage()) {
    return "it has no storage";
  }
  if (is_in_private_format(tensor)) {
    return "its device keeps it in a private format (torch_npu's internal formats, such as "
           "FRACTAL_NZ): torch_npu.npu_format_cast(tensor, 2) gives a plain one";
  }
  if (tensor.is_leaf() && tensor.requires_grad()) {
    return "it is a parameter";
  }
  if (tensor.is_view() && tensor._base().is_leaf() && tensor._base().requires_grad()) {
    return "it is a view of a parameter";
  }
  return nullptr;
}

const char* refuse_storage(const c10::StorageImpl& storage) {
  if (storage.nbytes() == 0) {
    return "its storage is empty";
  }
  if (storage.allocator() == nullptr) {
    return "its storage has no allocator: the memory belongs to someone else";
  }
  if (!storage.resizable()) {
    return "its storage cannot be resized";
  }
  if (c10::impl::cow::is_cow_data_ptr(storage.data_ptr())) {
    return "its storage is copy-on-write";
  }
  return nullptr;
}

}  // namespace

SwapCheck is_valid_for_swap(const at::Tensor& tensor, const SwapPredicate& custom_check) {
  const char* reason = refuse_kind(tensor);
  if (reason == nullptr) {
    reason = refuse_storage(*tensor.storage().unsafeGetStorageImpl());
  }
  if (reason != nullptr) {
    return {reason};
  }
  if (custom_check && !custom_check(tensor)) {
    return {"the custom check refuses it"};
  }
  return {};
}

}  // namespace swapline
