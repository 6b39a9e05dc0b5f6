// Everything that can be refused is refused here, before anything is touched.
#include "swapline/optimizer/param_list.h"

#include "swapline/swap/eligibility.h"

#include <utility>

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

namespace swapline::detail {
namespace {

bool is_supported(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

void check_param(const at::Tensor& tensor, const std::string& name) {
  TORCH_CHECK(tensor.is_leaf(), "can't optimize a non-leaf Tensor (", name, ")");
  TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_quantized(),
              name,
              " must be a dense tensor, got ",
              tensor.toString());
  TORCH_CHECK(!tensor.key_set().has_any(
                  c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize})),
              name,
              " is a tensor subclass or a functional tensor: unwrap it to the plain tensor inside");
  TORCH_CHECK(is_supported(tensor.scalar_type()),
              name,
              " must be of a real floating-point type, got ",
              tensor.scalar_type());
  TORCH_CHECK(tensor.is_non_overlapping_and_dense(),
              name,
              " has gaps or overlaps in memory (strides ",
              tensor.strides(),
              " for sizes ",
              tensor.sizes(),
              "): make it contiguous");
  TORCH_CHECK(
      !is_in_private_format(tensor),
      name,
      " is kept by its device in a private format (torch_npu's internal formats, such as "
      "FRACTAL_NZ), which cannot be cut: torch_npu.npu_format_cast(tensor, 2) gives a plain "
      "one");
}

}  // namespace

void ParamList::add(size_t group, std::span<const at::Tensor> tensors) {
  const size_t num_before = size();
  try {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors[i];
      std::string name = "parameter " + std::to_string(i) + " of group " + std::to_string(group);
      TORCH_CHECK(tensor.defined(), name, " is undefined");
      if (tensor.device() != device_) {
        continue;
      }
      check_param(tensor, name);
      const auto known = indices_.find(tensor.unsafeGetTensorImpl());
      if (known != indices_.end()) {
        const ListedParam& first = params_[known->second];
        TORCH_CHECK(
            first.group == group, name, " is also ", first.name, ": it can be in one group only");
        continue;
      }
      indices_.emplace(tensor.unsafeGetTensorImpl(), size());
      params_.push_back({tensor,
                         group,
                         std::move(name),
                         tensor.scalar_type(),
                         tensor.sizes().vec(),
                         tensor.strides().vec()});
    }
  } catch (...) {
    truncate(num_before);
    throw;
  }
}

void ParamList::truncate(size_t num_params) {
  while (size() > num_params) {
    indices_.erase(params_.back().tensor.unsafeGetTensorImpl());
    params_.pop_back();
  }
}

bool ParamList::contains(const at::Tensor& tensor) const {
  return indices_.count(tensor.unsafeGetTensorImpl()) != 0;
}

size_t ParamList::index_of(const at::Tensor& tensor) const {
  return indices_.at(tensor.unsafeGetTensorImpl());
}

at::Tensor ParamList::checked_grad(size_t index) const {
  const ListedParam& param = params_[index];
  const at::Tensor& tensor = param.tensor;
  const at::Tensor& grad = tensor.grad();
  if (!grad.defined()) {
    return {};
  }
  TORCH_CHECK(grad.layout() == at::kStrided,
              "the gradient of ",
              param.name,
              " is sparse; the optimizer needs dense gradients");
  TORCH_CHECK(tensor.device() == device_ && tensor.scalar_type() == param.dtype,
              param.name,
              " was ",
              param.dtype,
              " on ",
              device_,
              " when the optimizer was made and is ",
              tensor.scalar_type(),
              " on ",
              tensor.device(),
              ": make a new optimizer after a parameter is moved or cast");
  TORCH_CHECK(tensor.sizes() == at::IntArrayRef(param.sizes) &&
                  tensor.strides() == at::IntArrayRef(param.strides),
              param.name,
              " changed its sizes or strides after the optimizer was made");
  TORCH_CHECK(grad.device() == tensor.device(),
              "the gradient of ",
              param.name,
              " is on ",
              grad.device(),
              ", the parameter on ",
              tensor.device());
  TORCH_CHECK(grad.scalar_type() == tensor.scalar_type(),
              "the gradient of ",
              param.name,
              " is ",
              grad.scalar_type(),
              ", the parameter ",
              tensor.scalar_type());
  TORCH_CHECK(grad.sizes() == tensor.sizes(),
              "the gradient of ",
              param.name,
              " has sizes ",
              grad.sizes(),
              ", the parameter ",
              tensor.sizes());
  if (grad.strides() == tensor.strides() || (grad.is_contiguous() && tensor.is_contiguous())) {
    return grad;
  }
  return at::empty_strided(tensor.sizes(), tensor.strides(), grad.options()).copy_(grad);
}

}  // namespace swapline::detail
