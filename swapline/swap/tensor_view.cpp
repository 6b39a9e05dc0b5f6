#include "swapline/swap/tensor_view.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

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

}  // namespace swapline::detail
