// What swapping costs Muon on an 8B model, in virtual time: a dry run.
#include "tests/optimizer/muon_training.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>

namespace swapline::testing {
namespace {

struct Groups {
  MuonGroup matrices;
  AdamGroup others;
};

struct Figures {
  OptimizerStats stats;
  double step_ms = 0;  // of the compute stream
  size_t held_bytes = 0;
};

class MuonFiguresTest : public OptimizerTest {
 protected:
  void use_dry_machine(const std::string& preset) {
    auto options = machine({.preset = preset, .capacity_bytes = size_t{256} << 30});
    options.dry_run = true;
    sim::configure(options);
  }

  static at::Tensor param(at::IntArrayRef sizes, at::ScalarType dtype) {
    const auto options = at::TensorOptions().dtype(dtype).device(device());
    const at::Tensor made = at::empty(sizes, options).requires_grad_(true);
    made.mutable_grad() = at::empty(sizes, options);
    return made;
  }

  static Groups llama_8b(at::ScalarType dtype) {
    Groups groups;
    const auto matrix = [&](int64_t rows, int64_t columns) {
      groups.matrices.params.push_back(param({rows, columns}, dtype));
    };
    for (int layer = 0; layer < 32; ++layer) {
      for (const int64_t rows : {4096, 1024, 1024, 4096, 14336, 14336}) {
        matrix(rows, 4096);
      }
      matrix(4096, 14336);
      groups.others.params.push_back(param({4096}, dtype));
      groups.others.params.push_back(param({4096}, dtype));
    }
    groups.others.params.push_back(param({128256, 4096}, dtype));
    groups.others.params.push_back(param({128256, 4096}, dtype));
    groups.others.params.push_back(param({4096}, dtype));
    return groups;
  }

  // Of Newton-Schulz: three products in each of five iterations.
  static double product_flops(const MuonGroup& matrices) {
    double flops = 0;
    for (const at::Tensor& matrix : matrices.params) {
      const auto side = static_cast<double>(std::min(matrix.size(0), matrix.size(1)));
      const auto length = static_cast<double>(std::max(matrix.size(0), matrix.size(1)));
      flops += 5 * 2 * side * side * (2 * length + side);
    }
    return flops;
  }

  static double compute_ms() { return static_cast<double>(sim().stream_time(0, 0)) * 1e-6; }

  // A step whose first chunks were prefetched, and whose last ones are stored behind it.
  static Figures measure(const Groups& groups, StatePlacement placement) {
    const auto& spec = sim().options().spec;
    AdamOptions options;
    options.placement = placement;
    options.link_bytes_per_s = std::min(spec.h2d_bytes_per_s, spec.d2h_bytes_per_s);
    options.copy_latency_s = static_cast<double>(spec.copy_latency) * 1e-9;
    const auto context = std::make_shared<SwapContext>(device());
    Muon muon(context, {groups.matrices}, {groups.others}, options);
    muon.step();
    muon.drain();
    sim().reset_peak_memory(0);
    const size_t before = sim().memory_stats(0).allocated_bytes;
    muon.prefetch();
    sim().synchronize_device(0);
    const double begin = compute_ms();
    muon.step();
    Figures figures;
    figures.step_ms = compute_ms() - begin;
    muon.drain();
    figures.stats = muon.stats();
    figures.held_bytes = sim().memory_stats(0).peak_allocated_bytes - before;
    return figures;
  }
};

TEST_F(MuonFiguresTest, SwappingCostsLittleBesideAnEightBillionModelsProducts) {
  for (const std::string preset : {"h100-sxm", "ascend-910b"}) {
    for (const auto dtype : {at::kBFloat16, at::kFloat}) {
      SCOPED_TRACE(preset + " " + c10::toString(dtype));
      use_dry_machine(preset);
      const double resident_ms = measure(llama_8b(dtype), StatePlacement::kDevice).step_ms;
      use_dry_machine(preset);
      const Groups groups = llama_8b(dtype);
      const Figures swapped = measure(groups, StatePlacement::kSwap);
      const OptimizerStats& stats = swapped.stats;
      const sim::DeviceSpec& spec = sim().options().spec;
      const double products_ms =
          1e3 * product_flops(groups.matrices) / (spec.float16_flops * spec.compute_efficiency);
      EXPECT_GE(resident_ms, products_ms) << "bfloat16 products";
      EXPECT_LE(resident_ms, 1.15 * products_ms);
      EXPECT_LE(swapped.step_ms, (dtype == at::kFloat ? 1.015 : 1.007) * resident_ms);
      EXPECT_LE(stats.arena_bytes + stats.scratch_bytes, stats.state_bytes / 16);
      EXPECT_LE(swapped.held_bytes, stats.arena_bytes + stats.scratch_bytes + 512 + (8 << 20));
    }
  }
}

}  // namespace
}  // namespace swapline::testing
