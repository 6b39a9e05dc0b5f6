// Everything that can be refused is refused here, before anything is touched.
#include "swapline/optimizer/adam_params.h"

#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

namespace swapline::detail {
namespace {

bool is_supported(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

void check_param(const at::Tensor& tensor, const std::string& name, c10::Device device) {
  TORCH_CHECK(tensor.defined(), name, " is undefined");
  TORCH_CHECK(tensor.is_leaf(), "can't optimize a non-leaf Tensor (", name, ")");
  TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_quantized(),
              name,
              " must be a dense tensor, got ",
              tensor.toString());
  TORCH_CHECK(!tensor.key_set().has_any(
                  c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize})),
              name,
              " is a tensor subclass or a functional tensor: unwrap it to the plain tensor inside");
  TORCH_CHECK(
      tensor.device() == device, name, " is on ", tensor.device(), ", the optimizer on ", device);
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
}

}  // namespace

AdamParams::AdamParams(const std::vector<AdamGroup>& groups, c10::Device device) {
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].params.size(); ++i) {
      const at::Tensor& tensor = groups[g].params[i];
      std::string name = "parameter " + std::to_string(i) + " of group " + std::to_string(g);
      check_param(tensor, name, device);
      const auto [known, is_new] = indices_.emplace(tensor.unsafeGetTensorImpl(), params_.size());
      if (!is_new) {
        const AdamParam& first = params_[known->second];
        TORCH_CHECK(
            first.group == g, name, " is also ", first.name, ": it can be in one group only");
        continue;
      }
      params_.push_back({tensor, g, std::move(name), tensor.sizes().vec(), tensor.strides().vec()});
    }
  }
  TORCH_CHECK(!params_.empty(), "the optimizer got no parameters");
  steps_ = at::zeros({static_cast<int64_t>(params_.size())}, at::TensorOptions().dtype(at::kFloat));
  step_values_ = steps_.mutable_data_ptr<float>();
}

size_t AdamParams::index_of(const at::Tensor& tensor) const {
  const auto found = indices_.find(tensor.unsafeGetTensorImpl());
  TORCH_CHECK(found != indices_.end(), "the tensor is not a parameter of this optimizer");
  return found->second;
}

at::Tensor AdamParams::step_tensor(size_t index) const {
  return steps_.select(0, static_cast<int64_t>(index));
}

at::Tensor AdamParams::checked_grad(size_t index) const {
  const AdamParam& param = params_[index];
  const at::Tensor& tensor = param.tensor;
  const at::Tensor& grad = tensor.grad();
  if (!grad.defined()) {
    return {};
  }
  TORCH_CHECK(grad.layout() == at::kStrided,
              "the gradient of ",
              param.name,
              " is sparse; Adam needs dense gradients");
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
