#include "sim/torch/cost.h"

#include <algorithm>
#include <array>

namespace swapline::sim {
namespace {

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

FlopRule flop_rule(std::string_view op) {
  static constexpr std::array<std::string_view, 5> kFirstTwo = {
      "aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::_grouped_mm"};
  static constexpr std::array<std::string_view, 6> kSecondTwo = {"aten::addmm",
                                                                 "aten::addmm_",
                                                                 "aten::baddbmm",
                                                                 "aten::baddbmm_",
                                                                 "aten::addbmm",
                                                                 "aten::addmv"};
  if (contains(kFirstTwo, op)) {
    return FlopRule::kProduct01;
  }
  return contains(kSecondTwo, op) ? FlopRule::kProduct12 : FlopRule::kNone;
}

ByteRule byte_rule(std::string_view op) {
  static constexpr std::array<std::string_view, 4> kGathers = {
      "aten::embedding", "aten::index_select", "aten::index", "aten::gather"};
  return contains(kGathers, op) ? ByteRule::kGather : ByteRule::kAll;
}

double product_flops(const at::Tensor& a, const at::Tensor& b) {
  const double columns = b.dim() < 2 ? 1.0 : static_cast<double>(b.size(-1));
  return 2.0 * static_cast<double>(a.numel()) * columns;
}

Precision precision_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return Precision::kFloat16;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return Precision::kFloat64;
    default:
      return Precision::kFloat32;
  }
}

double bytes_of(const at::Tensor& tensor) {
  double elements = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0 || tensor.size(dim) == 0) {
      elements *= static_cast<double>(tensor.size(dim));
    }
  }
  return elements * static_cast<double>(tensor.dtype().itemsize());
}

}  // namespace swapline::sim
