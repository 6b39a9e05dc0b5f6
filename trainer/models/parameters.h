// Makes a model's parameters: the same values on every device, from one seed.
#pragma once

#include "trainer/device.h"

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace swapline::trainer {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;        // a leaf that requires grad
  bool is_sharded = false;  // each expert rank holds other rows; else all hold the same
};

// Rows of a parameter's first dimension that a rank holds.
struct Rows {
  int64_t begin = 0;
  int64_t count = 0;
};

class ParameterFactory {
 public:
  // Values are drawn on the CPU in float32, one parameter after the other, then converted and
  // copied to their device; a dry run allocates on the device only. Devices must outlive the
  // parameters' gradients.
  ParameterFactory(c10::ScalarType dtype, int64_t seed);

  at::Tensor normal(Device& device, const std::string& name, at::IntArrayRef sizes, double std);
  // Some rows of normal(device, name, sizes, std), the same ones as if all were there.
  at::Tensor normal_rows(
      Device& device, const std::string& name, at::IntArrayRef sizes, double std, Rows rows);
  at::Tensor ones(Device& device, const std::string& name, at::IntArrayRef sizes);
  // A parameter of its own with the values of `parameter`, on another device.
  NamedParameter copy_to(Device& device, const NamedParameter& parameter);
  // No parameter: a table on the device, in the parameters' dtype. `values` is on the CPU.
  at::Tensor constant(Device& device, const at::Tensor& values) const;

  c10::ScalarType dtype() const { return dtype_; }
  // In the order in which they were made.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 private:
  at::Tensor add(Device& device, const std::string& name, at::Tensor tensor, bool is_sharded);
  at::Tensor uninitialized(const Device& device, at::IntArrayRef sizes) const;

  c10::ScalarType dtype_;
  at::Generator generator_;
  std::vector<NamedParameter> parameters_;
};

}  // namespace swapline::trainer
