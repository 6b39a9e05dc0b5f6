// What the optimizer holds, how many copies and launches it makes, and when they run.
#include "tests/optimizer/training.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

namespace swapline::testing {
namespace {

class MemoryTest : public OptimizerTest {
 protected:
  static size_t allocated() { return sim::simulator().memory_stats(0).allocated_bytes; }
  static size_t peak() { return sim::simulator().memory_stats(0).peak_allocated_bytes; }
  static sim::Nanos time_of(const c10::Stream& stream) {
    return sim::simulator().stream_time(0, static_cast<sim::StreamId>(stream.id()));
  }
};

TEST_F(MemoryTest, NoStateIsOnTheDeviceOutsideTheStep) {
  const auto groups = plain_groups({{300, 300}, {1000}});
  const Gradients gradients(groups, 3, false);
  Adam adam(make_context(), groups);
  const size_t before = allocated();
  EXPECT_EQ(adam.device_state_bytes(), 0u);
  for (int step = 0; step < 3; ++step) {
    gradients.set(groups, step);
    adam.step();
    adam.drain();
    EXPECT_EQ(adam.device_state_bytes(), 0u);
    EXPECT_EQ(allocated(), before);
  }
}

// Scenario 6: the first step too.
TEST_F(MemoryTest, ThePeakStaysWithinTheBoundFromTheFirstStepOnAlsoWhenTheHostRunsAhead) {
  for (const int64_t times : {1, 4, 16, 64}) {
    use_machine();
    const auto groups = plain_groups({{700, 300}, {5000}, {200, 200}});
    const Gradients gradients(groups, 5, false);
    AdamOptions options;
    options.swap_optimizer_times = times;
    Adam adam(make_context(), groups, options);
    const size_t before = allocated();
    sim::simulator().reset_peak_memory(0);
    for (int step = 0; step < 5; ++step) {
      gradients.set(groups, step);
      adam.step();
      adam.prefetch();
    }
    const auto stats = adam.stats();
    EXPECT_LE(stats.arena_bytes, stats.state_bytes / static_cast<size_t>(times));
    EXPECT_LE(peak() - before, stats.arena_bytes + 512) << "512 bytes are the step's number";
    EXPECT_GT(peak() - before, stats.arena_bytes / 2);
    adam.drain();
    EXPECT_EQ(sim::simulator().num_races(), 0);
  }
}

TEST_F(MemoryTest, OneCopyAStateAndChunkEachWay) {
  const auto groups = plain_groups({{700, 300}, {5000}, {200, 200}});
  const Gradients gradients(groups, 2, false);
  Adam adam(make_context(), groups);
  for (int step = 0; step < 2; ++step) {
    const auto before = adam.stats();
    gradients.set(groups, step);
    adam.step();
    const auto after = adam.stats();
    EXPECT_EQ(after.num_copies_in - before.num_copies_in, 2 * after.num_chunks);
    EXPECT_EQ(after.num_copies_out - before.num_copies_out, 2 * after.num_chunks);
    EXPECT_EQ(after.num_launches - before.num_launches, after.num_chunks);
  }
}

// Scenario 72.
TEST_F(MemoryTest, FiveThousandSmallParametersMoveInFewCopies) {
  std::vector<std::vector<int64_t>> sizes;
  for (int64_t i = 0; i < 5000; ++i) {
    sizes.push_back({256 + i * 7919 % 769});
  }
  use_machine({.preset = "trial"});
  const auto groups = plain_groups(sizes);
  const Gradients gradients(groups, 1, false);
  Adam adam(make_context(), groups);
  gradients.set(groups, 0);
  adam.step();
  adam.drain();
  const auto stats = adam.stats();
  EXPECT_LE(stats.num_chunks, 64);
  EXPECT_EQ(stats.num_copies_in, 2 * stats.num_chunks);
  EXPECT_EQ(stats.num_copies_out, 2 * stats.num_chunks);
  EXPECT_EQ(stats.num_launches, stats.num_chunks);
}

TEST_F(MemoryTest, NothingIsPinnedAndNoStreamIsMadeAfterConstruction) {
  const auto groups = plain_groups({{700, 300}, {5000}});
  const Gradients gradients(groups, 6, false);
  const auto context = make_context();
  Adam adam(context, groups);
  const auto pinned = context->host().stats();
  const auto streams = sim::simulator().counters(0).num_streams;
  for (int step = 0; step < 6; ++step) {
    gradients.set(groups, step);
    adam.step();
  }
  EXPECT_EQ(context->host().stats().num_pinned_allocations, pinned.num_pinned_allocations);
  EXPECT_EQ(sim::simulator().counters(0).num_streams, streams);
  EXPECT_LE(pinned.requested_bytes, adam.stats().state_bytes * 101 / 100);
  EXPECT_LE(pinned.pinned_bytes, pinned.requested_bytes * 101 / 100 + (size_t{1} << 20));
}

TEST_F(MemoryTest, TheStepTakesTheLinksTimePlusOneChunkAtEachEnd) {
  use_machine({.preset = "trial"});
  const auto groups = plain_groups({{2000, 1000}, {1000, 1000}});
  const Gradients gradients(groups, 2, false);
  const auto context = make_context(nullptr, /*timing=*/true);
  Adam adam(context, groups);
  for (int step = 0; step < 2; ++step) {
    gradients.set(groups, step);
    adam.step();
    adam.drain();
  }
  const auto times = adam.take_step_times();
  ASSERT_EQ(times.size(), 2u);
  const double chunk_ms = static_cast<double>(adam.stats().slot_bytes) / 25e9 * 1e3 + 0.02;
  for (const auto& step : times) {
    EXPECT_NEAR(step.h2d_ms, 24e6 / 25e9 * 1e3 + 0.02 * adam.stats().num_chunks, 0.01);
    EXPECT_NEAR(step.d2h_ms, step.h2d_ms, 0.01);
    EXPECT_LT(step.update_ms, step.h2d_ms / 4);
    EXPECT_LE(step.step_ms, 1.05 * step.h2d_ms + 2 * chunk_ms);
    EXPECT_GE(step.step_ms, step.h2d_ms);
    EXPECT_LE(step.exposed_ms, step.step_ms);
  }
  EXPECT_TRUE(adam.take_step_times().empty());
}

TEST_F(MemoryTest, TheLastStoreRunsUnderTheNextForward) {
  const auto groups = plain_groups({{1000, 1000}});
  const Gradients gradients(groups, 1, false);
  const auto context = make_context();
  Adam adam(context, groups);
  gradients.set(groups, 0);
  adam.step();
  auto& copies = context->copies();
  EXPECT_LT(time_of(copies.compute_stream()), time_of(copies.d2h_stream()));
  const auto a = at::ones({400, 400}, at::TensorOptions().device(sim::device()));
  const auto before = time_of(copies.compute_stream());
  const auto forward = at::mm(a, a);
  EXPECT_LT(before, time_of(copies.d2h_stream())) << "forward began while the copy ran";
  adam.drain();
}

TEST_F(MemoryTest, PrefetchLoadsUnderTheEndOfBackward) {
  const auto groups = plain_groups({{1000, 1000}});
  const Gradients gradients(groups, 1, false);
  const auto a = at::ones({2000, 2000}, at::TensorOptions().device(sim::device()));
  const auto context = make_context(nullptr, /*timing=*/true);
  auto& copies = context->copies();
  AdamOptions options;
  options.swap_optimizer_times = 1;
  double exposed[2];
  for (const bool prefetch : {false, true}) {
    Adam adam(context, groups, options);
    gradients.set(groups, 0);
    if (prefetch) {
      adam.prefetch();
      adam.prefetch();
      EXPECT_EQ(adam.stats().num_copies_in, 2 * 3) << "a second prefetch does nothing";
      EXPECT_LE(adam.device_state_bytes(), adam.stats().arena_bytes);
    }
    const auto tail_of_backward = at::mm(a, a);
    if (prefetch) {
      EXPECT_LT(time_of(copies.h2d_stream()), time_of(copies.compute_stream()));
    }
    adam.step();
    adam.drain();
    const auto times = adam.take_step_times();
    exposed[prefetch ? 1 : 0] = times.at(0).exposed_ms;
  }
  EXPECT_LT(exposed[1], 0.7 * exposed[0]) << "three of six chunks were there";
}

TEST_F(MemoryTest, UnsyncedStepsOverlap) {
  use_machine({.preset = "trial"});
  const auto groups = plain_groups({{2000, 1000}, {1000, 1000}});
  const Gradients gradients(groups, 1, false);
  const auto context = make_context();
  Adam adam(context, groups);
  gradients.set(groups, 0);
  const auto d2h = context->copies().d2h_stream();
  adam.step();
  adam.drain();
  const auto start = time_of(d2h);
  adam.step();
  adam.drain();
  const auto synced = time_of(d2h) - start;
  const auto again = time_of(d2h);
  for (int i = 0; i < 4; ++i) {
    adam.step();
  }
  const auto unsynced = (time_of(d2h) - again) / 4;
  adam.drain();
  EXPECT_LT(unsynced, synced);
}

TEST_F(MemoryTest, WithLittleRoomFewerSlotsDoAndWithNoneTheStepCanBeRepeated) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool is_short : {false, true}) {
    const auto groups = plain_groups({{5000, 1000}});
    const Gradients gradients(groups, 1, false);
    AdamOptions options;
    options.swap_optimizer_times = 1;
    options.copy_latency_s = 1e-3;  // slots large enough to be segments of their own
    Adam adam(make_context(), groups, options);
    gradients.set(groups, 0);
    for (const size_t num_slots : {0, 1, 2}) {
      sim().empty_cache(0);
      const auto stats = sim().memory_stats(0);
      const size_t room = num_slots * adam.stats().slot_bytes + adam.stats().slot_bytes / 2;
      sim().take_away(0, is_short ? stats.capacity_bytes - stats.reserved_bytes - room : 0);
      if (is_short && num_slots == 0) {
        EXPECT_THROW(adam.step(), c10::OutOfMemoryError);
        EXPECT_EQ(adam.device_state_bytes(), 0u);
        EXPECT_TRUE(adam.state(groups[0].params[0]).empty());
        continue;
      }
      if (num_slots > 0) {
        const auto before = adam.stats().num_shortages;
        adam.prefetch();
        adam.step();
        adam.drain();
        EXPECT_EQ(adam.stats().num_shortages > before, is_short);
      }
      sim().take_away(0, 0);
    }
    sim().take_away(0, 0);
    results[is_short ? 1 : 0] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

TEST_F(MemoryTest, StatesOfFrozenParametersCostNothing) {
  auto groups = plain_groups({{700, 300}, {5000}});
  groups[0].params[0].requires_grad_(false);
  Adam adam(make_context(), groups);
  EXPECT_EQ(adam.stats().state_bytes, 2u * 4 * 5000);
}

}  // namespace
}  // namespace swapline::testing
