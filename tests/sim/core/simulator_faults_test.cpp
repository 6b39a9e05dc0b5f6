// Faults made on purpose: the k-th allocation, pin or copy; slow links; memory taken away.
#include "tests/sim/core/machine.h"

#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

constexpr size_t kBytes = 100'000;

class FaultsTest : public ::testing::Test {
 protected:
  // How long ten copies take under `faults`.
  static std::vector<Nanos> times_of_copies(const Faults& faults) {
    SimulatorOptions options = tiny_machine();
    options.faults = faults;
    Simulator sim(options);
    void* data = sim.allocate(0, 0, kBytes);
    void* pinned = sim.allocate_pinned(kBytes);
    std::vector<Nanos> times;
    for (int i = 0; i < 10; ++i) {
      sim.synchronize_device(0);
      const Nanos before = sim.host_time(0);
      copy_in(sim, 0, pinned, data, kBytes);
      times.push_back(sim.stream_time(0, 0) - before - kHostOp);
    }
    return times;
  }

  Simulator sim_{tiny_machine()};
  Faults faults_;
};

TEST_F(FaultsTest, KthDeviceAllocationFailsOnceAndNothingIsHeld) {
  void* before = sim_.allocate(0, 0, kBytes);
  faults_.fail_device_allocation = 2;
  sim_.set_faults(faults_);
  void* a = sim_.allocate(0, 0, kBytes);
  void* b = sim_.allocate(1, 0, kBytes);
  try {
    sim_.allocate(0, 0, kBytes);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("injected fault"), std::string::npos) << error.what();
  }
  EXPECT_EQ(sim_.memory_stats(0).num_out_of_memory, 1);
  void* c = sim_.allocate(0, 0, kBytes);
  for (void* block : {before, a, b, c}) {
    sim_.free(block);
  }
  EXPECT_EQ(sim_.live_bytes(), 0U);
}

TEST_F(FaultsTest, KthPinnedAllocationFailsOnce) {
  faults_.fail_pinned_allocation = 1;
  sim_.set_faults(faults_);
  void* a = sim_.allocate_pinned(kBytes);
  EXPECT_THROW(sim_.allocate_pinned(kBytes), std::bad_alloc);
  void* b = sim_.allocate_pinned(kBytes);
  EXPECT_EQ(sim_.pinned_stats().allocated_bytes, 2 * kBytes);
  sim_.free_pinned(a);
  sim_.free_pinned(b);
}

TEST_F(FaultsTest, KthCopyFailsAndMovesNothing) {
  auto* data = static_cast<unsigned char*>(sim_.allocate(0, 0, kBytes));
  auto* pinned = static_cast<unsigned char*>(sim_.allocate_pinned(kBytes));
  std::memset(data, 1, kBytes);
  std::memset(pinned, 2, kBytes);
  faults_.fail_copy = 0;
  sim_.set_faults(faults_);
  try {
    copy_in(sim_, 0, pinned, data, kBytes);
    FAIL() << "no error";
  } catch (const CopyError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("100000 bytes to device 0"), std::string::npos) << text;
    EXPECT_NE(text.find("injected fault"), std::string::npos) << text;
  }
  EXPECT_TRUE(is_filled(data, kBytes, 1));
  EXPECT_EQ(sim_.counters(0).num_copies_in, 0);
  copy_in(sim_, 0, pinned, data, kBytes);
  EXPECT_TRUE(is_filled(data, kBytes, 2));
}

TEST_F(FaultsTest, KthLaunchFailsAndTouchesNothing) {
  faults_.fail_launch = 1;
  sim_.set_faults(faults_);
  const auto launch = [&] {
    sim_.begin_op(0, 0, "add_", {});
    sim_.end_op(0, 0, "add_", {}, {});
  };
  launch();
  const Nanos before = sim_.stream_time(0, 0);
  try {
    launch();
    FAIL() << "no error";
  } catch (const LaunchError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("add_ on device 0"), std::string::npos) << text;
  }
  EXPECT_EQ(sim_.counters(0).num_ops, 1);
  EXPECT_EQ(sim_.stream_time(0, 0), before);
  launch();
}

TEST_F(FaultsTest, CopiesInsideTheDeviceDoNotCount) {
  auto* data = static_cast<char*>(sim_.allocate(0, 0, kBytes));
  faults_.fail_copy = 0;
  sim_.set_faults(faults_);
  sim_.copy(0, 0, {0, data, 0, data + kBytes / 2, kBytes / 2, true, "clone"});
  EXPECT_EQ(sim_.num_races(), 0);
}

TEST_F(FaultsTest, NoFaultsAfterTheyAreTakenBack) {
  faults_.fail_device_allocation = 0;
  sim_.set_faults(faults_);
  sim_.set_faults({});
  sim_.free(sim_.allocate(0, 0, kBytes));
}

TEST_F(FaultsTest, JitterOnlyMakesCopiesLongerAndStaysInItsShare) {
  faults_.copy_jitter = 0.5;
  const Nanos least = copy_time(kBytes);
  const auto times = times_of_copies(faults_);
  for (const Nanos time : times) {
    EXPECT_GE(time, least);
    EXPECT_LE(time, least + static_cast<Nanos>(kBytes / 10) / 2 + 1);
  }
  EXPECT_NE(times[0], times[1]);
}

TEST_F(FaultsTest, JitterIsDeterminedByItsSeed) {
  faults_.copy_jitter = 0.5;
  faults_.seed = 1;
  const auto first = times_of_copies(faults_);
  EXPECT_EQ(times_of_copies(faults_), first);
  faults_.seed = 2;
  EXPECT_NE(times_of_copies(faults_), first);
}

TEST_F(FaultsTest, MemoryTakenAwayMakesLargeAllocationsFail) {
  sim_.take_away(0, 250 * kMiB);
  EXPECT_THROW(sim_.allocate(0, 0, 20 * kMiB), OutOfMemory);
  void* elsewhere = sim_.allocate(1, 0, 20 * kMiB);
  sim_.take_away(0, 0);
  void* now = sim_.allocate(0, 0, 20 * kMiB);
  sim_.free(elsewhere);
  sim_.free(now);
}

}  // namespace
}  // namespace swapline::sim
