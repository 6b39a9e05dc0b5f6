// Seeded initial values, and the account of what the parameters' memory is used for.
#include "trainer/models/parameters.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace swapline::trainer {

ParameterFactory::ParameterFactory(c10::ScalarType dtype, int64_t seed)
    : dtype_(dtype), generator_(at::detail::createCPUGenerator(static_cast<uint64_t>(seed))) {}

at::Tensor ParameterFactory::uninitialized(const Device& device, at::IntArrayRef sizes) const {
  return at::empty(sizes, at::TensorOptions().dtype(dtype_).device(device.torch_device()));
}

at::Tensor ParameterFactory::normal(Device& device,
                                    const std::string& name,
                                    at::IntArrayRef sizes,
                                    double std) {
  if (device.is_dry_run()) {
    return add(device, name, uninitialized(device, sizes), /*is_sharded=*/false);
  }
  const at::Tensor values = at::empty(sizes, at::kFloat).normal_(0.0, std, generator_);
  return add(device, name, constant(device, values), /*is_sharded=*/false);
}

at::Tensor ParameterFactory::normal_rows(
    Device& device, const std::string& name, at::IntArrayRef sizes, double std, Rows rows) {
  if (device.is_dry_run()) {
    std::vector<int64_t> some = sizes.vec();
    some.front() = rows.count;
    return add(device, name, uninitialized(device, some), /*is_sharded=*/true);
  }
  const at::Tensor values = at::empty(sizes, at::kFloat).normal_(0.0, std, generator_);
  return add(device,
             name,
             constant(device, values.narrow(0, rows.begin, rows.count)),
             /*is_sharded=*/true);
}

at::Tensor ParameterFactory::ones(Device& device, const std::string& name, at::IntArrayRef sizes) {
  return add(device,
             name,
             device.is_dry_run() ? uninitialized(device, sizes)
                                 : constant(device, at::ones(sizes, at::kFloat)),
             /*is_sharded=*/false);
}

NamedParameter ParameterFactory::copy_to(Device& device, const NamedParameter& parameter) {
  at::Tensor copy = uninitialized(device, parameter.tensor.sizes());
  copy.copy_(parameter.tensor.detach());
  return {parameter.name,
          add(device, parameter.name, copy, parameter.is_sharded),
          parameter.is_sharded};
}

at::Tensor ParameterFactory::constant(Device& device, const at::Tensor& values) const {
  at::Tensor tensor = uninitialized(device, values.sizes());
  tensor.copy_(values.to(dtype_));
  return tensor;
}

at::Tensor ParameterFactory::add(Device& device,
                                 const std::string& name,
                                 at::Tensor tensor,
                                 bool is_sharded) {
  device.note_use(tensor.storage(), MemoryUse::kParameters);
  tensor.set_requires_grad(true);
  // The first gradient that arrives becomes the parameter's gradient; later ones are added to it.
  tensor.register_hook([&device](const at::Tensor& gradient) {
    device.note_use(gradient.storage(), MemoryUse::kGradients);
  });
  parameters_.push_back({name, tensor, is_sharded});
  return tensor;
}

}  // namespace swapline::trainer
