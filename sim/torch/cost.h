// What an operator costs: arithmetic from the shapes of the known heavy ones, memory traffic from
// the bytes of its arguments and results.
#pragma once

#include "sim/core/simulator.h"

#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

namespace swapline::sim {

enum class FlopRule { kNone, kProduct01, kProduct12 };  // a matrix product of these arguments
enum class ByteRule { kAll, kGather };  // kGather: only the rows that are taken are read

FlopRule flop_rule(std::string_view op);
ByteRule byte_rule(std::string_view op);

// 2 * m * k * n (* batch) for a [.., m, k] by b [.., k, n]; for a vector b, n is 1. The same when
// groups of a's rows, or of its columns, meet a matrix each: each element of a meets n numbers.
double product_flops(const at::Tensor& a, const at::Tensor& b);
// The unit that computes on `dtype`.
Precision precision_of(c10::ScalarType dtype);
// Bytes of the elements, an expanded element counted once.
double bytes_of(const at::Tensor& tensor);

}  // namespace swapline::sim
