// Several host threads at once; ThreadSanitizer looks on.
#include "tests/sim/core/machine.h"

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 300;
constexpr size_t kBytes = 4096;

class ThreadsTest : public ::testing::TestWithParam<bool> {};

// One thread's share: its own stream and buffers on one device, everything else shared.
void hammer(Simulator& sim, int device, StreamId stream) {
  auto* pinned = static_cast<char*>(sim.allocate_pinned(kBytes, device));
  for (int i = 0; i < kRounds; ++i) {
    void* data = sim.allocate(device, stream, kBytes);
    sim.host_access("fill", pinned, kBytes, true);
    sim.copy(device, stream, {kHost, pinned, device, data, kBytes, true, "copy in"});
    run(sim, stream, "work", {reads(data, kBytes)}, {1e6}, device);
    sim.copy(device, stream, {device, data, kHost, pinned, kBytes, true, "copy out"});
    const auto event = sim.record(device, stream);
    if (i % 3 == 0) {
      sim.record_stream(data, device, 0);
    }
    sim.free(data);
    switch (i % 3) {
      case 0:
        sim.synchronize(*event);
        break;
      case 1:
        while (!sim.is_done(*event)) {
        }
        break;
      default:
        sim.synchronize_stream(device, stream);
    }
    sim.memory_stats(device);
    sim.counters(device);
    sim.live_bytes();
    sim.num_races();
  }
  sim.free_pinned(pinned);
}

TEST_P(ThreadsTest, ThreadsWithTheirOwnStreamsDoNotDisturbEachOther) {
  SimulatorOptions options = tiny_machine();
  options.late_copies = GetParam();
  options.trace = true;
  Simulator sim(options);
  std::barrier start(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&sim, &start, i] {
      start.arrive_and_wait();
      hammer(sim, i % 2, sim.new_stream(i % 2));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(sim.num_races(), 0) << sim.races().front().describe();
  for (const int device : {0, 1}) {
    sim.synchronize_device(device);
    sim.empty_cache(device);
    EXPECT_EQ(sim.counters(device).num_copies_in, kThreads / 2 * kRounds);
  }
  EXPECT_EQ(sim.live_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(EagerAndLate, ThreadsTest, ::testing::Bool());

}  // namespace
}  // namespace swapline::sim
