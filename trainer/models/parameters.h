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
  at::Tensor tensor;  // a leaf that requires grad
};

class ParameterFactory {
 public:
  // `device` must outlive the factory and the parameters' gradients. Values are drawn on the CPU in
  // float32, then converted and copied; a dry run allocates on the device only.
  ParameterFactory(Device& device, c10::ScalarType dtype, int64_t seed);

  at::Tensor normal(const std::string& name, at::IntArrayRef sizes, double std);
  at::Tensor ones(const std::string& name, at::IntArrayRef sizes);
  // No parameter: a table on the device, in the parameters' dtype. `values` is on the CPU.
  at::Tensor constant(const at::Tensor& values) const;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 private:
  at::Tensor add(const std::string& name, at::Tensor tensor);
  at::Tensor uninitialized(at::IntArrayRef sizes) const;

  Device* device_;
  c10::ScalarType dtype_;
  at::Generator generator_;
  std::vector<NamedParameter> parameters_;
};

}  // namespace swapline::trainer
