// What a step with mapped states takes, in virtual time, in a dry run of 0.4 billion parameters.
#include "tests/optimizer/training.h"

#include <algorithm>
#include <cstdint>

#include <ATen/ops/empty.h>

namespace swapline::testing {
namespace {

AdamOptions with_virtual(size_t bytes) {
  AdamOptions options;
  options.virtual_optimizer_bytes = bytes;
  return options;
}

struct Times {
  double step_ms = 0;
  double exposed_ms = 0;
  double bytes = 0;
  double slot_bytes = 0;
};

class VirtualTimesTest : public OptimizerTest {
 protected:
  // Of the second step.
  Times measure(const sim::DeviceSpec& spec, const AdamOptions& given, bool prefetches = false) {
    auto machine_options = machine();
    machine_options.spec = spec;
    machine_options.capacity_bytes = size_t{64} << 30;
    machine_options.dry_run = true;
    sim::configure(machine_options);
    AdamGroup group;
    for (int i = 0; i < 24; ++i) {
      const auto options = at::TensorOptions().dtype(at::kFloat).device(device());
      group.params.push_back(at::empty({4096, 4096}, options).requires_grad_(true));
      group.params.back().mutable_grad() = at::empty({4096, 4096}, options);
    }
    AdamOptions options = given;
    options.link_bytes_per_s = std::min(spec.h2d_bytes_per_s, spec.d2h_bytes_per_s);
    options.copy_latency_s = static_cast<double>(spec.copy_latency) * 1e-9;
    Adam adam(make_context(nullptr, /*timing=*/true), {group}, options);
    for (int step = 0; step < 2; ++step) {
      if (prefetches) {
        adam.prefetch();
        sim().synchronize_device(0);
      }
      adam.step();
      adam.drain();
    }
    const auto times = adam.take_step_times().back();
    const auto stats = adam.stats();
    return {times.step_ms,
            times.exposed_ms,
            static_cast<double>(stats.state_bytes),
            static_cast<double>(stats.slot_bytes)};
  }
  static double ms(double bytes, double bytes_per_s) { return bytes / bytes_per_s * 1e3; }
};

TEST_F(VirtualTimesTest, AllMappedTakesTheTimeOfTheLink) {
  for (const char* preset : {"ascend-910b", "h100-sxm", "gh200"}) {
    SCOPED_TRACE(preset);
    const auto spec = sim::preset(preset);
    const Times got = measure(spec, with_virtual(SIZE_MAX));
    const double link = ms(got.bytes, std::min(spec.h2d_bytes_per_s, spec.d2h_bytes_per_s));
    EXPECT_GE(got.step_ms, link);
    EXPECT_LE(got.step_ms, 1.001 * link);
    EXPECT_EQ(got.exposed_ms, 0);
  }
}

TEST_F(VirtualTimesTest, OnAFastLinkItTakesTheTimeOfTheUpdate) {
  auto spec = sim::preset("gh200");
  spec.h2d_bytes_per_s = spec.d2h_bytes_per_s = 4e12;
  const Times got = measure(spec, with_virtual(SIZE_MAX));
  // Parameters and gradients, read and written; as many bytes as the states.
  const double update = ms(2 * got.bytes, spec.memory_bytes_per_s);
  EXPECT_LT(ms(got.bytes, spec.h2d_bytes_per_s), update);
  EXPECT_GE(got.step_ms, update);
  EXPECT_LE(got.step_ms, 1.05 * update);
}

TEST_F(VirtualTimesTest, ReadsAndWritesTakeTurnsOnAHalfDuplexLink) {
  auto spec = sim::preset("h100-sxm");
  spec.full_duplex = false;
  const Times got = measure(spec, with_virtual(SIZE_MAX));
  const double both = ms(got.bytes, spec.h2d_bytes_per_s) + ms(got.bytes, spec.d2h_bytes_per_s);
  EXPECT_GE(got.step_ms, both);
  EXPECT_LE(got.step_ms, 1.001 * both);
}

// Each direction carries all bytes once, mapped or copied; beside that at most the pipeline's own
// fill and drain.
TEST_F(VirtualTimesTest, MappedAndSwappedChunksDoNotWaitForOneAnother) {
  const auto spec = sim::preset("ascend-910b");
  for (const bool prefetches : {false, true}) {
    const Times swapped = measure(spec, with_virtual(0), prefetches);
    for (const double share : {0.1, 0.5, 0.9}) {
      SCOPED_TRACE(share);
      const auto bytes = static_cast<size_t>(share * swapped.bytes);
      const Times mixed = measure(spec, with_virtual(bytes), prefetches);
      const double link = ms(mixed.bytes, std::min(spec.h2d_bytes_per_s, spec.d2h_bytes_per_s));
      const double chunk = link * mixed.slot_bytes / mixed.bytes;
      EXPECT_GE(mixed.step_ms, link);
      EXPECT_LE(mixed.step_ms, 1.05 * link);
      EXPECT_LE(mixed.step_ms, swapped.step_ms + 2 * chunk);
    }
  }
}

}  // namespace
}  // namespace swapline::testing
