// Memory of the machine: out of memory, retry, statistics, dry runs without memory.
#include "tests/sim/core/machine.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

class MemoryTest : public ::testing::Test {
 protected:
  static SimulatorOptions small_machine() {
    SimulatorOptions options = tiny_machine();
    options.capacity_bytes = 64 * kMiB;
    return options;
  }

  Simulator sim_{small_machine()};
};

TEST_F(MemoryTest, CapacityComesFromTheSpecUnlessItIsGiven) {
  EXPECT_EQ(sim_.memory_stats(0).capacity_bytes, 64 * kMiB);
  EXPECT_EQ(Simulator(tiny_machine()).memory_stats(0).capacity_bytes, 256 * kMiB);
}

TEST_F(MemoryTest, OutOfMemoryNamesWhatIsUsedReservedAndThere) {
  void* a = sim_.allocate(0, 0, 30 * kMiB);
  void* b = sim_.allocate(0, 0, 512);
  try {
    sim_.allocate(0, 0, 40 * kMiB);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    for (const char* part : {"device 0 is out of memory",
                             "tried to allocate 40.00 MiB",
                             "used 30.00 MiB",
                             "reserved 32.00 MiB",
                             "capacity 64.00 MiB"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  EXPECT_EQ(sim_.memory_stats(0).num_out_of_memory, 1);
  sim_.free(a);
  void* c = sim_.allocate(0, 0, 40 * kMiB);
  sim_.free(b);
  sim_.free(c);
  EXPECT_EQ(sim_.live_bytes(), 0U);
}

TEST_F(MemoryTest, FullDeviceWaitsFlushesItsCacheAndTriesAgain) {
  const StreamId side = sim_.new_stream(0);
  void* a = sim_.allocate(0, side, 40 * kMiB);
  run(sim_, side, "long", {writes(a, 40 * kMiB)}, {1e9});
  sim_.free(a);
  void* b = sim_.allocate(0, 0, 40 * kMiB);
  EXPECT_EQ(sim_.memory_stats(0).num_retries, 1);
  EXPECT_EQ(sim_.memory_stats(0).num_out_of_memory, 0);
  EXPECT_GE(sim_.host_time(0), sim_.stream_time(0, side)) << "the host waited for the device";
  run(sim_, 0, "next", {writes(b, 40 * kMiB)});
  EXPECT_EQ(sim_.num_races(), 0);
}

TEST_F(MemoryTest, HeldBlocksAreReleasedBeforeTheDeviceGivesUp) {
  const StreamId side = sim_.new_stream(0);
  void* a = sim_.allocate(0, 0, 40 * kMiB);
  run(sim_, side, "long", {}, {1e9});
  sim_.record_stream(a, 0, side);
  sim_.free(a);
  EXPECT_EQ(sim_.memory_stats(0).held_bytes, 40 * kMiB);
  sim_.free(sim_.allocate(0, 0, 40 * kMiB));
  EXPECT_EQ(sim_.memory_stats(0).held_bytes, 0U);
}

TEST_F(MemoryTest, RecordOfTheOwnStreamHoldsNothing) {
  void* a = sim_.allocate(0, 0, 4096);
  sim_.record_stream(a, 0, 0);
  run(sim_, 0, "long", {}, {1e9});
  sim_.free(a);
  EXPECT_EQ(sim_.memory_stats(0).held_bytes, 0U);
}

TEST_F(MemoryTest, EmptyCacheGivesSegmentsBack) {
  sim_.free(sim_.allocate(0, 0, 4096));
  EXPECT_EQ(sim_.memory_stats(0).reserved_bytes, 2 * kMiB);
  sim_.empty_cache(0);
  EXPECT_EQ(sim_.memory_stats(0).reserved_bytes, 0U);
}

TEST_F(MemoryTest, NothingIsAllocatedForNoBytes) {
  EXPECT_EQ(sim_.allocate(0, 0, 0), nullptr);
  sim_.free(nullptr);
  EXPECT_EQ(sim_.memory_stats(0).num_allocations, 0);
}

TEST_F(MemoryTest, FreeOfForeignMemoryIsRefused) {
  int on_stack = 0;
  EXPECT_THROW(sim_.free(&on_stack), std::invalid_argument);
}

TEST_F(MemoryTest, AddressesTellTheirDevice) {
  int on_stack = 0;
  auto* here = static_cast<char*>(sim_.allocate(0, 0, 4096));
  auto* there = static_cast<char*>(sim_.allocate(1, 0, 4096));
  EXPECT_EQ(sim_.device_of(here + 100), 0);
  EXPECT_EQ(sim_.device_of(there + 100), 1);
  EXPECT_EQ(sim_.device_of(&on_stack), kHost);
}

TEST_F(MemoryTest, KindsAndPeakByKindAreReported) {
  void* parameters = sim_.allocate(0, 0, 4 * kMiB);
  sim_.set_memory_kind(parameters, MemoryKind::kParameters);
  void* other = sim_.allocate(0, 0, 2 * kMiB);
  sim_.free(other);
  const DeviceMemoryStats stats = sim_.memory_stats(0);
  EXPECT_EQ(stats.bytes_by_kind[static_cast<size_t>(MemoryKind::kParameters)], 4 * kMiB);
  EXPECT_EQ(stats.bytes_by_kind[static_cast<size_t>(MemoryKind::kOther)], 0U);
  EXPECT_EQ(stats.peak_bytes_by_kind[static_cast<size_t>(MemoryKind::kParameters)], 4 * kMiB);
  EXPECT_EQ(stats.peak_bytes_by_kind[static_cast<size_t>(MemoryKind::kOther)], 2 * kMiB);
  sim_.reset_peak_memory(0);
  EXPECT_EQ(sim_.memory_stats(0).peak_allocated_bytes, 4 * kMiB);
}

TEST_F(MemoryTest, LiveBytesCountDevicesAndPinnedMemory) {
  void* a = sim_.allocate(0, 0, 1000);
  void* b = sim_.allocate(1, 0, 1000);
  void* c = sim_.allocate_pinned(1000);
  EXPECT_EQ(sim_.live_bytes(), 1024U + 1024U + 1000U);
  sim_.free(a);
  sim_.free(b);
  sim_.free_pinned(c);
  EXPECT_EQ(sim_.live_bytes(), 0U);
}

TEST_F(MemoryTest, FreshSegmentsReadAsZero) {
  const auto* data = static_cast<unsigned char*>(sim_.allocate(0, 0, 4096));
  EXPECT_TRUE(is_filled(data, 4096, 0));
}

class DryRunTest : public ::testing::Test {
 protected:
  static SimulatorOptions machine(size_t capacity_bytes) {
    SimulatorOptions options = tiny_machine();
    options.capacity_bytes = capacity_bytes;
    options.dry_run = true;
    options.late_copies = true;
    return options;
  }
};

TEST_F(DryRunTest, TerabytesCostNothing) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer leaves too little address space";
#endif
  constexpr size_t kTiB = size_t{1} << 40;
  Simulator sim(machine(4 * kTiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) {
    blocks.push_back(sim.allocate(0, 0, kTiB));
    run(sim, 0, "write", {writes(blocks.back(), kTiB)}, {0, 1e12});
  }
  void* pinned = sim.allocate_pinned(kTiB);
  copy_out(sim, 0, blocks[0], pinned, kTiB);
  EXPECT_EQ(sim.memory_stats(0).allocated_bytes, 3 * kTiB);
  EXPECT_EQ(sim.num_races(), 0);
  EXPECT_THROW(sim.allocate(0, 0, 2 * kTiB), OutOfMemory);
  for (void* block : blocks) {
    sim.free(block);
  }
  sim.free_pinned(pinned);
  EXPECT_EQ(sim.live_bytes(), 0U);
}

// What a program costs, dry or not.
std::vector<Nanos> figures(const SimulatorOptions& options) {
  Simulator sim(options);
  const StreamId side = sim.new_stream(0);
  void* data = sim.allocate(0, 0, kMiB);
  void* pinned = sim.allocate_pinned(kMiB);
  run(sim, 0, "write", {writes(data, kMiB)}, {1e8, 1e6});
  order(sim, 0, side);
  copy_out(sim, side, data, pinned, kMiB);
  copy_in(sim, 0, pinned, data, kMiB, false);
  const std::vector<Nanos> result = {sim.host_time(0),
                                     sim.stream_time(0, 0),
                                     sim.stream_time(0, side),
                                     sim.num_races(),
                                     static_cast<Nanos>(sim.memory_stats(0).peak_allocated_bytes)};
  sim.free(data);
  sim.free_pinned(pinned);
  return result;
}

TEST_F(DryRunTest, TimesRacesAndBytesAreThoseOfTheRealRun) {
  SimulatorOptions real = machine(64 * kMiB);
  real.dry_run = false;
  EXPECT_EQ(figures(machine(64 * kMiB)), figures(real));
}

}  // namespace
}  // namespace swapline::sim
