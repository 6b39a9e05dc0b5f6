#include "bench/optimizer_bench_setup.h"

#include "sim/torch/sim.h"

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

namespace swapline::bench {
namespace {

Sizes seventy_five_tensors() {
  Sizes sizes = {{32000, 512}};
  for (int layer = 0; layer < 8; ++layer) {
    sizes.insert(sizes.end(), 4, {512, 512});
    sizes.insert(sizes.end(), 2, {1376, 512});
    sizes.push_back({512, 1376});
    sizes.insert(sizes.end(), 2, {512});
  }
  sizes.push_back({512});
  sizes.push_back({32000, 512});
  return sizes;
}

}  // namespace

Sizes llama_8b() {
  Sizes sizes = {{128256, 4096}};
  for (int layer = 0; layer < 32; ++layer) {
    sizes.insert(sizes.end(),
                 {{4096, 4096},
                  {1024, 4096},
                  {1024, 4096},
                  {4096, 4096},
                  {14336, 4096},
                  {14336, 4096},
                  {4096, 14336},
                  {4096},
                  {4096}});
  }
  sizes.push_back({4096});
  sizes.push_back({128256, 4096});
  return sizes;
}

std::vector<Workload> workloads() {
  return {{"75 tensors",
           seventy_five_tensors(),
           {{1, 25.69, 20.8, 0}, {4, 31.81, 20.8, 0}, {16, 33.40, 20.8, 28}, {64, 39.46, 23.5, 7}}},
          {"64 equal",
           Sizes(64, {1024, 1024}),
           {{1, 23.43, 0, 0},
            {4, 24.29, 0, 0},
            {16, 28.87, 0, 0},
            {32, 0, 24.0, 16},
            {64, 47.18, 0, 0}}},
          {"816 tensors",
           Sizes(816, {30900}),
           {{1, 32.56, 0, 0}, {4, 0, 0, 0}, {16, 25.45, 9.4, 12}, {64, 0, 0, 0}}}};
}

void use_machine(const std::string& preset, bool dry_run, bool late_copies) {
  sim::SimulatorOptions options;
  options.spec = sim::preset(preset);
  options.num_devices = 1;
  options.dry_run = dry_run;
  options.late_copies = late_copies;
  if (dry_run) {
    options.capacity_bytes = size_t{256} << 30;
  }
  sim::configure(options);
}

AdamGroup make_group(const Sizes& sizes, bool dry_run) {
  AdamGroup group;
  group.settings.weight_decay = 0.1;
  auto generator = at::detail::createCPUGenerator(1);
  const auto on_device = at::TensorOptions().dtype(at::kFloat).device(sim::device());
  const auto make = [&](const std::vector<int64_t>& size) {
    return dry_run ? at::empty(size, on_device) : at::randn(size, generator).to(sim::device());
  };
  for (const auto& size : sizes) {
    group.params.push_back(make(size).requires_grad_(true));
    group.params.back().mutable_grad() = make(size);
  }
  return group;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return at::equal(x, y);
  });
}

}  // namespace swapline::bench
