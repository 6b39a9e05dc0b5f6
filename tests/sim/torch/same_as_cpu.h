// The yardstick of the backend's operators: the same program on the CPU and on the simulated device
// gives the same tensors, bit by bit, in the same layout.
#pragma once

#include "sim/torch/sim.h"
#include "tests/support/tensors.h"

#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace swapline::testing {

using Tensors = std::vector<at::Tensor>;
using Program = std::function<Tensors(const Tensors&)>;

inline void expect_same_tensor(const at::Tensor& expected, const at::Tensor& got) {
  ASSERT_EQ(expected.defined(), got.defined());
  if (!expected.defined()) {
    return;
  }
  EXPECT_TRUE(got.device().is_privateuseone()) << got.device();
  EXPECT_EQ(expected.scalar_type(), got.scalar_type());
  ASSERT_EQ(expected.sizes(), got.sizes());
  EXPECT_EQ(expected.strides(), got.strides());
  EXPECT_EQ(expected.storage_offset(), got.storage_offset());
  EXPECT_TRUE(at::equal(expected.detach(), got.detach().cpu()))
      << "CPU:\n"
      << expected.flatten().slice(0, 0, 8) << "\ndevice:\n"
      << got.detach().cpu().flatten().slice(0, 0, 8);
}

// Runs `program` on copies of `inputs` on both devices and compares its results and what it did to
// the inputs.
inline void expect_same_as_cpu(const std::string& name,
                               const Tensors& inputs,
                               const Program& program) {
  SCOPED_TRACE(name);
  Tensors on_cpu;
  Tensors on_device;
  for (const at::Tensor& input : inputs) {
    on_cpu.push_back(input.clone());
    on_device.push_back(input.to(sim::device()));
  }
  const Tensors expected = program(on_cpu);
  const Tensors got = program(on_device);
  ASSERT_EQ(expected.size(), got.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE("result " + std::to_string(i));
    expect_same_tensor(expected[i], got[i]);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE("input " + std::to_string(i));
    expect_same_tensor(on_cpu[i], on_device[i]);
  }
}

// The program that runs `forward`, then backward from a fixed gradient: its result and the
// gradients of its floating inputs.
inline Program with_backward(const std::function<at::Tensor(const Tensors&)>& forward) {
  return [forward](const Tensors& inputs) -> Tensors {
    Tensors leaves;
    for (const at::Tensor& input : inputs) {
      leaves.push_back(input.detach());
      if (at::isFloatingType(input.scalar_type()) || at::isComplexType(input.scalar_type())) {
        leaves.back().requires_grad_();
      }
    }
    const at::Tensor result = forward(leaves);
    const at::Tensor ramp = at::linspace(-1, 1, result.numel(), result.options().dtype(at::kFloat));
    result.backward(ramp.view(result.sizes()).to(result.scalar_type()));
    Tensors all = {result.detach()};
    for (const at::Tensor& leaf : leaves) {
      all.push_back(leaf.requires_grad() ? leaf.grad() : at::Tensor());
    }
    return all;
  };
}

inline at::Tensor on_cpu(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  return random_tensor(sizes, seed, at::kCPU).to(dtype);
}

inline at::Tensor ints_on_cpu(at::IntArrayRef sizes, int64_t limit, uint64_t seed) {
  return at::randint(limit, sizes, at::detail::createCPUGenerator(seed), at::kLong);
}

}  // namespace swapline::testing
