// Reproducible tensors on the simulated device, work for its streams, and comparison by bits.
#pragma once

#include "sim/torch/sim.h"

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace swapline::testing {

// Standard normal numbers drawn on the CPU from `seed`: the same on every device.
inline at::Tensor random_tensor(at::IntArrayRef sizes,
                                uint64_t seed,
                                c10::Device device = sim::device()) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed)).to(device);
}

inline at::Tensor random_parameter(at::IntArrayRef sizes, uint64_t seed, double scale = 0.2) {
  return (random_tensor(sizes, seed) * scale).detach().set_requires_grad(true);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) {
    return false;
  }
  return !a.defined() || (a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
                          at::equal(a.detach().cpu(), b.detach().cpu()));
}

inline bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) {
    return false;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i])) {
      return false;
    }
  }
  return true;
}

// Keeps the current stream of the simulated device busy: `rounds` products of n x n matrices.
inline at::Tensor keep_busy(int rounds, int64_t n = 128, c10::Device device = sim::device()) {
  at::Tensor x = at::ones({n, n}, at::TensorOptions().device(device));
  for (int i = 0; i < rounds; ++i) {
    x = at::mm(x, x).mul_(1.0 / static_cast<double>(n));
  }
  return x;
}

}  // namespace swapline::testing
