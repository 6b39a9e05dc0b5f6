// Seeded initial values, and the account of what the parameters' memory is used for.
#include "trainer/parameters.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace swapline::trainer {

ParameterFactory::ParameterFactory(Device& device, c10::ScalarType dtype, int64_t seed)
    : device_(&device),
      dtype_(dtype),
      generator_(at::detail::createCPUGenerator(static_cast<uint64_t>(seed))) {}

at::Tensor ParameterFactory::uninitialized(at::IntArrayRef sizes) const {
  return at::empty(sizes, at::TensorOptions().dtype(dtype_).device(device_->torch_device()));
}

at::Tensor ParameterFactory::normal(const std::string& name, at::IntArrayRef sizes, double std) {
  if (device_->is_dry_run()) {
    return add(name, uninitialized(sizes));
  }
  const at::Tensor values = at::empty(sizes, at::kFloat).normal_(0.0, std, generator_);
  return add(name, constant(values));
}

at::Tensor ParameterFactory::ones(const std::string& name, at::IntArrayRef sizes) {
  return add(name,
             device_->is_dry_run() ? uninitialized(sizes) : constant(at::ones(sizes, at::kFloat)));
}

at::Tensor ParameterFactory::constant(const at::Tensor& values) const {
  at::Tensor tensor = uninitialized(values.sizes());
  tensor.copy_(values.to(dtype_));
  return tensor;
}

at::Tensor ParameterFactory::add(const std::string& name, at::Tensor tensor) {
  device_->note_use(tensor.storage(), MemoryUse::kParameters);
  tensor.set_requires_grad(true);
  // The first gradient that arrives becomes the parameter's gradient; later ones are added to it.
  tensor.register_hook([device = device_](const at::Tensor& gradient) {
    device->note_use(gradient.storage(), MemoryUse::kGradients);
  });
  parameters_.push_back({name, tensor});
  return tensor;
}

}  // namespace swapline::trainer
