#include "sim/torch/dry_run.h"

#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/result_type.h>
#include <c10/util/Exception.h>

namespace swapline::sim {
namespace {

using torch::jit::Stack;

// Results in schema order from arguments in schema order.
using ShapeFunction = std::vector<c10::IValue> (*)(const std::vector<c10::IValue>& arguments);

at::Tensor like(const c10::IValue& value) {
  return at::empty_like(value.toTensor());
}

at::Tensor with_shape(const at::Tensor& options_from, at::IntArrayRef shape) {
  return at::empty(shape, options_from.options());
}

// (input, normalized_shape, weight, bias, eps) -> (output, mean, rstd)
std::vector<c10::IValue> layer_norm(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  auto outer = input.sizes().vec();
  for (size_t i = 0; i < arguments[1].toIntVector().size(); ++i) {
    outer[outer.size() - 1 - i] = 1;
  }
  return {like(arguments[0]), with_shape(input, outer), with_shape(input, outer)};
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, mask) -> three gradients
std::vector<c10::IValue> layer_norm_backward(const std::vector<c10::IValue>& arguments) {
  const auto gradient_of = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() ? like(value) : at::Tensor();
  };
  return {gradient_of(arguments[1]), gradient_of(arguments[5]), gradient_of(arguments[6])};
}

// (grad, indices, num_weights, padding_idx, scale_grad_by_freq) -> gradient
std::vector<c10::IValue> embedding_backward(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& grad = arguments[0].toTensor();
  return {with_shape(grad, {arguments[2].toInt(), grad.size(-1)})};
}

// (weight, indices, ...) -> rows
std::vector<c10::IValue> embedding(const std::vector<c10::IValue>& arguments) {
  auto shape = arguments[1].toTensor().sizes().vec();
  shape.push_back(arguments[0].toTensor().size(-1));
  return {with_shape(arguments[0].toTensor(), shape)};
}

// (self, dim, index) -> rows
std::vector<c10::IValue> index_select(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  auto shape = self.sizes().vec();
  const int64_t dim = arguments[1].toInt();
  shape[dim < 0 ? dim + self.dim() : dim] = arguments[2].toTensor().numel();
  return {with_shape(self, shape)};
}

// (rows [M, K], matrices [E, K, N], ends [E]) -> [M, N]
// (columns [K, M], rows [M, N], ends [E]) -> [E, K, N]
std::vector<c10::IValue> grouped_mm(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& a = arguments[0].toTensor();
  const at::Tensor& b = arguments[1].toTensor();
  TORCH_CHECK(a.dim() == 2 && arguments[2].isTensor(),
              "aten::_grouped_mm in a dry run: found a first matrix of ",
              a.dim(),
              " dimensions, allowed is one of 2 with the ends of its groups");
  const int64_t columns = b.size(-1);
  // The kernel pads rows to 16 bytes.
  const int64_t alignment = 16 / static_cast<int64_t>(a.element_size());
  const int64_t stride = (columns + alignment - 1) / alignment * alignment;
  if (b.dim() == 3) {
    return {at::empty_strided({a.size(0), columns}, {stride, 1}, a.options())};
  }
  return {at::empty_strided({arguments[2].toTensor().size(0), a.size(0), columns},
                            {a.size(0) * stride, stride, 1},
                            a.options())};
}

// (sorted, values, out_int32, ...) -> places
std::vector<c10::IValue> searchsorted(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& values = arguments[1].toTensor();
  const at::ScalarType dtype = arguments[2].toBool() ? at::kInt : at::kLong;
  return {at::empty(values.sizes(), values.options().dtype(dtype))};
}

// (input, p, train) -> (output, mask)
std::vector<c10::IValue> dropout(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return {like(arguments[0]), at::empty(input.sizes(), input.options().dtype(at::kBool))};
}

std::vector<c10::IValue> like_first(const std::vector<c10::IValue>& arguments) {
  return {like(arguments[0])};
}

std::vector<c10::IValue> like_second(const std::vector<c10::IValue>& arguments) {
  return {like(arguments[1])};
}

std::vector<c10::IValue> like_first_bool(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  return {at::empty_like(self, self.options().dtype(at::kBool))};
}

at::Tensor broadcast(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  return at::empty(at::infer_size(a.sizes(), b.sizes()), a.options().dtype(dtype));
}

std::vector<c10::IValue> compare(const std::vector<c10::IValue>& arguments) {
  return {broadcast(arguments[0].toTensor(), arguments[1].toTensor(), at::kBool)};
}

std::vector<c10::IValue> floor_divide(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& a = arguments[0].toTensor();
  const at::Tensor& b = arguments[1].toTensor();
  return {broadcast(a, b, at::result_type(a, b))};
}

// (condition, self, other) -> broadcast
std::vector<c10::IValue> where(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& a = arguments[1].toTensor();
  const at::Tensor& b = arguments[2].toTensor();
  const auto shape =
      at::infer_size(at::infer_size(arguments[0].toTensor().sizes(), a.sizes()), b.sizes());
  return {at::empty(shape, a.options().dtype(at::result_type(a, b)))};
}

// (abs, angle) or (real, imag) -> complex
std::vector<c10::IValue> complex_of_two(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& a = arguments[0].toTensor();
  return {broadcast(a, arguments[1].toTensor(), c10::toComplexType(a.scalar_type()))};
}

std::vector<c10::IValue> reduce_all(const std::vector<c10::IValue>& arguments) {
  return {with_shape(arguments[0].toTensor(), {})};
}

// (self, dims, correction, keepdim) -> reduced
std::vector<c10::IValue> deviation(const std::vector<c10::IValue>& arguments) {
  const at::Tensor& self = arguments[0].toTensor();
  const bool is_all = arguments[1].isNone() || arguments[1].toIntVector().empty();
  std::vector<bool> is_reduced(self.dim(), is_all);
  for (const int64_t dim : is_all ? std::vector<int64_t>() : arguments[1].toIntVector()) {
    is_reduced.at(dim < 0 ? dim + self.dim() : dim) = true;
  }
  std::vector<int64_t> shape;
  for (int64_t dim = 0; dim < self.dim(); ++dim) {
    if (!is_reduced[dim]) {
      shape.push_back(self.size(dim));
    } else if (arguments[3].toBool()) {
      shape.push_back(1);
    }
  }
  return {with_shape(self, shape)};
}

// By name, or by name, dot and overload where only one of several has no Meta kernel.
ShapeFunction find_shape_function(const c10::FunctionSchema& schema) {
  static const std::unordered_map<std::string, ShapeFunction> functions = {
      {"aten::native_layer_norm", &layer_norm},
      {"aten::native_layer_norm_backward", &layer_norm_backward},
      {"aten::embedding", &embedding},
      {"aten::embedding_dense_backward", &embedding_backward},
      {"aten::index_select", &index_select},
      {"aten::_grouped_mm", &grouped_mm},
      {"aten::searchsorted.Tensor", &searchsorted},
      {"aten::native_dropout", &dropout},
      {"aten::native_dropout_backward", &like_first},
      {"aten::where", &where},
      {"aten::bernoulli", &like_first},
      {"aten::polar", &complex_of_two},
      {"aten::complex", &complex_of_two},
      {"aten::abs", &like_first},
      {"aten::relu", &like_first},
      {"aten::hardtanh", &like_first},
      {"aten::hardswish", &like_first},
      {"aten::flip", &like_first},
      {"aten::roll", &like_first},
      {"aten::isnan", &like_first_bool},
      {"aten::logical_not", &like_first_bool},
      {"aten::logical_and", &compare},
      {"aten::logical_or", &compare},
      {"aten::logical_xor", &compare},
      {"aten::floor_divide", &floor_divide},
      {"aten::hardtanh_backward", &like_second},
      {"aten::hardswish_backward", &like_second},
      {"aten::mse_loss_backward", &like_second},
      {"aten::dot", &reduce_all},
      {"aten::trace", &reduce_all},
      {"aten::max.", &reduce_all},
      {"aten::min.", &reduce_all},
      {"aten::std.correction", &deviation},
      {"aten::var.correction", &deviation},
  };
  auto found = functions.find(schema.name());
  if (found == functions.end()) {
    found = functions.find(schema.name() + "." + schema.overload_name());
  }
  return found == functions.end() ? nullptr : found->second;
}

// Outputs given by the caller take the shapes of the results and are returned in their place.
void fill_outputs(const c10::FunctionSchema& schema,
                  const std::vector<c10::IValue>& arguments,
                  std::vector<c10::IValue>& results) {
  size_t next = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (schema.arguments()[i].is_out() && next < results.size()) {
      arguments[i].toTensor().resize_(results[next].toTensor().sizes());
      results[next++] = arguments[i];
    }
  }
}

}  // namespace

void run_shape_function(const c10::OperatorHandle& op, Stack& stack) {
  const size_t num_arguments = op.schema().arguments().size();
  if (const ShapeFunction shape_function = find_shape_function(op.schema())) {
    const std::vector<c10::IValue> arguments(
        stack.end() - static_cast<std::ptrdiff_t>(num_arguments), stack.end());
    torch::jit::drop(stack, num_arguments);
    std::vector<c10::IValue> results = shape_function(arguments);
    fill_outputs(op.schema(), arguments, results);
    for (c10::IValue& result : results) {
      stack.push_back(std::move(result));
    }
    return;
  }
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  } catch (const c10::NotImplementedError&) {
    TORCH_CHECK(false,
                op.schema().name(),
                " cannot be dry-run: the shape of its result depends on data, or is not known");
  }
}

}  // namespace swapline::sim
