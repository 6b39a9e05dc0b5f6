// Which tensors may be swapped, and why not.
#pragma once

#include "swapline/export.h"

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

namespace swapline {

// Yes, or no with a reason that completes "not swapped: ...".
struct SwapCheck {
  std::string reason;  // empty: may be swapped
  explicit operator bool() const { return reason.empty(); }
};

using SwapPredicate = std::function<bool(const at::Tensor&)>;

// Refuses: undefined tensors; CPU and meta tensors; parameters (leaves that require grad) and their
// views; empty storages; storages without allocator, not resizable or copy-on-write; sparse,
// quantised and nested tensors; wrappers without bytes of their own (fake, functional,
// distributed); and what `custom_check` refuses. Does not touch the device.
SWAPLINE_API SwapCheck is_valid_for_swap(const at::Tensor& tensor,
                                         const SwapPredicate& custom_check = {});

// Its device keeps its bytes in another order than its strides say (torch_npu's internal formats).
SWAPLINE_API bool is_in_private_format(const at::Tensor& tensor);

}  // namespace swapline
