// The figures that are promised, on virtual time, in a dry run: the workloads that other systems
// were measured on, and the shape of an 8B model on two devices.
#include "tests/optimizer/training.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>

namespace swapline::testing {
namespace {

using Sizes = std::vector<std::vector<int64_t>>;

constexpr size_t kEmbeddingBytes = size_t{128256} * 4096 * 2 * 4;  // its two states

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

Sizes llama_8b() {
  Sizes sizes = {{128256, 4096}};
  for (int layer = 0; layer < 32; ++layer) {
    for (const int64_t rows : {4096, 1024, 1024, 4096, 14336, 14336, 14336}) {
      sizes.push_back({rows, 4096});
    }
    sizes.insert(sizes.end(), 2, {4096});
  }
  sizes.push_back({4096});
  sizes.push_back({128256, 4096});
  return sizes;
}

struct Figures {
  OptimizerStats stats;
  OptimizerStepTimes times;
  size_t held_bytes = 0;
  HostPoolStats host;
};

class FiguresTest : public OptimizerTest {
 protected:
  void use_dry_machine(const std::string& preset) {
    auto options = machine({.preset = preset, .capacity_bytes = size_t{256} << 30});
    options.dry_run = true;
    sim::configure(options);
  }

  Figures measure(const Sizes& sizes, int64_t times) {
    AdamGroup group;
    for (const auto& size : sizes) {
      const auto options = at::TensorOptions().dtype(at::kFloat).device(device());
      group.params.push_back(at::empty(size, options).requires_grad_(true));
      group.params.back().mutable_grad() = at::empty(size, options);
    }
    SwapContextOptions context_options;
    context_options.timing = true;
    const auto context = std::make_shared<SwapContext>(device(), context_options);
    const auto& spec = sim().options().spec;
    AdamOptions options;
    options.swap_optimizer_times = times;
    options.link_bytes_per_s = std::min(spec.h2d_bytes_per_s, spec.d2h_bytes_per_s);
    options.copy_latency_s = static_cast<double>(spec.copy_latency) * 1e-9;
    Adam adam(context, {group}, options);
    const size_t before = sim().memory_stats(0).allocated_bytes;
    sim().reset_peak_memory(0);
    for (int step = 0; step < 2; ++step) {
      adam.step();
      adam.drain();
    }
    Figures figures;
    figures.stats = adam.stats();
    figures.times = adam.take_step_times().back();
    figures.held_bytes = sim().memory_stats(0).peak_allocated_bytes - before;
    figures.host = context->host().stats();
    return figures;
  }
};

TEST_F(FiguresTest, SeventyFiveTensorsTakeLittleMoreThanTheirBytesAtAnyTimes) {
  const std::vector<std::pair<int64_t, double>> most = {
      {1, 20.8}, {4, 20.8}, {16, 20.8}, {64, 23.5}};
  for (const auto& [times, most_ms] : most) {
    use_dry_machine("trial");
    const auto figures = measure(seventy_five_tensors(), times);
    EXPECT_LE(figures.times.step_ms, most_ms) << times;
    EXPECT_GE(figures.times.step_ms, 18.58);
    EXPECT_LE(figures.held_bytes, figures.stats.state_bytes / static_cast<size_t>(times) + 512);
  }
}

TEST_F(FiguresTest, TheEightBillionModelRunsAtTheLinksPace) {
  for (const std::string preset : {"ascend-910b", "h100-sxm"}) {
    double step_ms[3];
    int number = 0;
    for (const int64_t times : {1, 16, 64}) {
      SCOPED_TRACE(preset + ", times " + std::to_string(times));
      use_dry_machine(preset);
      const auto figures = measure(llama_8b(), times);
      const auto& stats = figures.stats;
      const auto& ms = figures.times;
      const auto num_chunks = static_cast<double>(stats.num_chunks);
      EXPECT_LE(stats.arena_bytes, stats.state_bytes / static_cast<size_t>(times));
      EXPECT_LE(figures.held_bytes, stats.arena_bytes + 512 + 3 * (size_t{2} << 20));
      EXPECT_LE(ms.step_ms,
                1.05 * std::max({ms.h2d_ms, ms.d2h_ms, ms.update_ms}) +
                    (ms.h2d_ms + ms.d2h_ms + ms.update_ms) / num_chunks);
      EXPECT_EQ(stats.num_copies_in, 2 * 2 * stats.num_chunks) << "two steps, two states";
      EXPECT_EQ(stats.num_copies_out, 2 * 2 * stats.num_chunks);
      EXPECT_LT(stats.slot_bytes, kEmbeddingBytes / 4) << "the embedding is split";
      EXPECT_LE(static_cast<double>(figures.host.pinned_bytes),
                1.01 * static_cast<double>(figures.host.requested_bytes) + (64 << 20));
      step_ms[number++] = ms.step_ms;
    }
    EXPECT_LE(step_ms[0], step_ms[1] * 1.0001);
    EXPECT_LE(step_ms[2], step_ms[1] * 1.02);
  }
}

}  // namespace
}  // namespace swapline::testing
