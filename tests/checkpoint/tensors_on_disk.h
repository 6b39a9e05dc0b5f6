// Tensors to write, and what came back.
#pragma once

#include "swapline/checkpoint/file_ops.h"
#include "swapline/checkpoint/tensor_reader.h"
#include "swapline/checkpoint/tensor_writer.h"

#include <cstring>
#include <string>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randint.h>

namespace swapline::testing {

// Any bits there are, NaNs included; bools are 0 and 1.
inline at::Tensor random_bits(at::ScalarType dtype, at::IntArrayRef sizes, uint64_t seed = 0) {
  const auto generator = at::detail::createCPUGenerator(seed);
  at::Tensor made = at::empty(sizes, dtype);
  const auto num_bytes = static_cast<int64_t>(made.nbytes());
  const at::Tensor bytes =
      at::randint(dtype == at::kBool ? 2 : 256, {num_bytes}, generator, at::kByte);
  if (num_bytes > 0) {
    std::memcpy(made.mutable_data_ptr(), bytes.const_data_ptr(), made.nbytes());
  }
  return made;
}

inline bool has_same_bits(const at::Tensor& one, const at::Tensor& other) {
  const at::Tensor a = one.contiguous();
  const at::Tensor b = other.contiguous();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.numel() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

inline void write_to(const std::string& folder,
                     const std::vector<NamedTensor>& tensors,
                     size_t file_bytes = size_t{4} << 30) {
  write_tensors(*system_file_ops(), folder, tensors, file_bytes);
}

inline at::Tensor read_from(const TensorReader& reader, const std::string& name) {
  const TensorEntry& entry = reader.entries().at(name);
  at::Tensor tensor = at::empty(entry.sizes, entry.dtype);
  reader.read(std::vector<TensorTarget>{{name, tensor}});
  return tensor;
}

}  // namespace swapline::testing
