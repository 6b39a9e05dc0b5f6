// Virtual time: what operators, copies, events and waits cost, on streams and on the host.
#include "tests/sim/core/machine.h"

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

constexpr size_t kBytes = 1'000'000;

class TimeTest : public ::testing::Test {
 protected:
  Nanos stream_time(StreamId stream = 0, int device = 0) {
    return sim_.stream_time(device, stream);
  }
  Nanos host_time(int device = 0) { return sim_.host_time(device); }
  // Work of a whole number of microseconds.
  void busy(StreamId stream, double micros) { run(sim_, stream, "busy", {}, {micros * 1e6}); }

  Simulator sim_{tiny_machine()};
};

TEST_F(TimeTest, OperatorTakesLaunchTimeOnTheHostAndLatencyOnItsStream) {
  run(sim_, 0, "a");
  EXPECT_EQ(host_time(), kHostOp);
  EXPECT_EQ(stream_time(), kHostOp + kLaunch);
  run(sim_, 0, "b");
  EXPECT_EQ(host_time(), 2 * kHostOp);
  EXPECT_EQ(stream_time(), kHostOp + 2 * kLaunch) << "b starts when a is done";
  EXPECT_EQ(sim_.counters(0).num_ops, 2);
}

TEST_F(TimeTest, OperatorWaitsForTheHostThatLaunchesIt) {
  sim_.advance_host(0, 50'000);
  run(sim_, 0, "a");
  EXPECT_EQ(stream_time(), 50'000 + kHostOp + kLaunch);
}

TEST_F(TimeTest, ArithmeticBindsWhenItTakesLongerThanTheBytes) {
  run(sim_, 0, "mm", {}, {/*flops=*/1e9, /*bytes=*/1e6});
  EXPECT_EQ(stream_time(), kHostOp + kLaunch + 1'000'000);  // 1 TFLOP/s
}

TEST_F(TimeTest, BytesBindWhenTheyTakeLongerThanTheArithmetic) {
  run(sim_, 0, "add", {}, {/*flops=*/1e6, /*bytes=*/1e8});
  EXPECT_EQ(stream_time(), kHostOp + kLaunch + 1'000'000);  // 100 GB/s
}

TEST_F(TimeTest, HalfPrecisionIsFasterAndDoubleSlower) {
  run(sim_, 0, "half", {}, {.flops = 1e9, .precision = Precision::kFloat16}, 0);
  run(sim_, 0, "double", {}, {.flops = 1e9, .precision = Precision::kFloat64}, 1);
  EXPECT_EQ(stream_time(0, 0), kHostOp + kLaunch + 500'000);
  EXPECT_EQ(stream_time(0, 1), kHostOp + kLaunch + 2'000'000);
}

TEST_F(TimeTest, StreamsRunSideBySide) {
  const StreamId other = sim_.new_stream(0);
  busy(0, 100);
  busy(other, 100);
  EXPECT_EQ(stream_time(0), kHostOp + kLaunch + 100'000);
  EXPECT_EQ(stream_time(other), 2 * kHostOp + kLaunch + 100'000);
}

TEST_F(TimeTest, NewStreamDoesNotInheritAnotherStreamsClock) {
  busy(0, 1000);
  const StreamId fresh = sim_.new_stream(0);
  EXPECT_EQ(stream_time(fresh), 0);
  run(sim_, fresh, "a");
  EXPECT_EQ(stream_time(fresh), 2 * kHostOp + kLaunch);
}

TEST_F(TimeTest, StreamsComeFromAPoolOf32) {
  std::vector<StreamId> first;
  for (int i = 0; i < 32; ++i) {
    first.push_back(sim_.new_stream(0));
  }
  EXPECT_EQ(std::set<StreamId>(first.begin(), first.end()).size(), 32U);
  EXPECT_EQ(std::count(first.begin(), first.end(), 0), 0) << "stream 0 is not in the pool";
  for (int i = 0; i < 70; ++i) {
    EXPECT_EQ(sim_.new_stream(0), first[i % 32]);
  }
  EXPECT_EQ(sim_.counters(0).num_streams, 33);
  EXPECT_EQ(sim_.new_stream(1), 1) << "each device has its own";
}

TEST_F(TimeTest, UnknownStreamsAndDevicesAreRefused) {
  EXPECT_THROW(sim_.stream_time(0, 1), std::out_of_range);
  EXPECT_THROW(sim_.stream_time(0, -1), std::out_of_range);
  EXPECT_THROW(sim_.new_stream(2), std::out_of_range);
  EXPECT_THROW(sim_.host_time(-1), std::out_of_range);
}

TEST_F(TimeTest, StreamWaitsForAnEventOfAnother) {
  const StreamId other = sim_.new_stream(0);
  busy(0, 100);
  const auto event = sim_.record(0, 0);
  busy(0, 100);  // behind the event: not waited for
  sim_.wait(0, other, *event);
  run(sim_, other, "after");
  EXPECT_EQ(Simulator::time_of(*event), kHostOp + kLaunch + 100'000);
  EXPECT_EQ(stream_time(other), Simulator::time_of(*event) + kLaunch);
}

TEST_F(TimeTest, EventOnAnIdleStreamIsDoneWhenTheHostRecordedIt) {
  sim_.advance_host(0, 5000);
  EXPECT_EQ(Simulator::time_of(*sim_.record(0, 0)), 5000);
}

TEST_F(TimeTest, QueryComparesWithTheHostsPresentTime) {
  busy(0, 100);
  const auto event = sim_.record(0, 0);
  EXPECT_FALSE(sim_.is_done(*event));
  EXPECT_FALSE(sim_.is_stream_done(0, 0));
  sim_.advance_host(0, 200'000);
  EXPECT_TRUE(sim_.is_done(*event));
  EXPECT_TRUE(sim_.is_stream_done(0, 0));
}

TEST_F(TimeTest, LoopAroundAQueryEnds) {
  busy(0, 100);
  const auto event = sim_.record(0, 0);
  int queries = 0;
  while (!sim_.is_done(*event) && queries < 100'000) {
    ++queries;
  }
  EXPECT_GT(queries, 0);
  EXPECT_GE(host_time(), Simulator::time_of(*event));
}

TEST_F(TimeTest, HostWaitsForAnEventAStreamOrTheWholeDevice) {
  const StreamId other = sim_.new_stream(0);
  busy(0, 100);
  const auto event = sim_.record(0, 0);
  busy(0, 100);
  busy(other, 900);
  sim_.synchronize(*event);
  EXPECT_EQ(host_time(), Simulator::time_of(*event));
  sim_.synchronize_stream(0, 0);
  EXPECT_EQ(host_time(), stream_time(0));
  sim_.synchronize_device(0);
  EXPECT_EQ(host_time(), stream_time(other));
  EXPECT_EQ(host_time(1), 0) << "each device's host has its own clock";
}

class CopyTimeTest : public TimeTest {
 protected:
  void make(SimulatorOptions options = tiny_machine()) {
    machine_ = std::make_unique<Simulator>(std::move(options));
    device_ = machine_->allocate(0, 0, 2 * kBytes);
    pinned_ = machine_->allocate_pinned(2 * kBytes);
    side_ = machine_->new_stream(0);
    start_ = machine_->host_time(0);
  }
  char* device_upper() const { return static_cast<char*>(device_) + kBytes; }
  char* pinned_upper() const { return static_cast<char*>(pinned_) + kBytes; }
  // Time since the machine was ready.
  Nanos at(StreamId stream) const { return machine_->stream_time(0, stream) - start_; }

  std::unique_ptr<Simulator> machine_;
  void* device_ = nullptr;
  void* pinned_ = nullptr;
  StreamId side_ = 0;
  Nanos start_ = 0;
};

TEST_F(CopyTimeTest, CopyTakesItsLatencyAndItsBytes) {
  make();
  copy_in(*machine_, 0, pinned_, device_, kBytes);
  EXPECT_EQ(at(0), kHostOp + copy_time(kBytes));
  EXPECT_EQ(machine_->host_time(0) - start_, kHostOp) << "the host goes on";
  EXPECT_EQ(machine_->counters(0).num_copies_in, 1);
  EXPECT_EQ(machine_->counters(0).bytes_in, static_cast<int64_t>(kBytes));
  EXPECT_EQ(machine_->counters(0).num_ops, 0);
}

TEST_F(CopyTimeTest, DirectionsHaveTheirOwnRates) {
  SimulatorOptions options = tiny_machine();
  options.spec.d2h_bytes_per_s /= 4;
  make(options);
  copy_out(*machine_, 0, device_, pinned_, kBytes);
  EXPECT_EQ(at(0), kHostOp + kCopyLatency + 4 * static_cast<Nanos>(kBytes / 10));
  EXPECT_EQ(machine_->counters(0).bytes_out, static_cast<int64_t>(kBytes));
}

TEST_F(CopyTimeTest, CopiesInOneDirectionShareTheEngine) {
  make();
  copy_in(*machine_, 0, pinned_, device_, kBytes);
  copy_in(*machine_, side_, pinned_upper(), device_upper(), kBytes);
  EXPECT_EQ(at(side_), kHostOp + 2 * copy_time(kBytes));
}

TEST_F(CopyTimeTest, OppositeDirectionsOverlapOnAFullDuplexLink) {
  make();
  copy_in(*machine_, 0, pinned_, device_, kBytes);
  copy_out(*machine_, side_, device_upper(), pinned_upper(), kBytes);
  EXPECT_EQ(at(side_), 2 * kHostOp + copy_time(kBytes));
}

TEST_F(CopyTimeTest, OppositeDirectionsTakeTurnsOnAHalfDuplexLink) {
  SimulatorOptions options = tiny_machine();
  options.spec.full_duplex = false;
  make(options);
  copy_in(*machine_, 0, pinned_, device_, kBytes);
  copy_out(*machine_, side_, device_upper(), pinned_upper(), kBytes);
  EXPECT_EQ(at(side_), kHostOp + 2 * copy_time(kBytes));
}

TEST_F(CopyTimeTest, CopyThatIsReadyRunsBeforeAnEarlierOneThatIsNot) {
  make();
  run(*machine_, 0, "busy", {}, {1e9});
  copy_in(*machine_, 0, pinned_, device_, kBytes);
  copy_in(*machine_, side_, pinned_upper(), device_upper(), kBytes);
  EXPECT_EQ(at(side_), 3 * kHostOp + copy_time(kBytes));
  EXPECT_EQ(at(0), kHostOp + kLaunch + 1'000'000 + copy_time(kBytes));
}

TEST_F(CopyTimeTest, BlockingCopyHoldsTheHostUntilItIsDone) {
  make();
  copy_in(*machine_, 0, pinned_, device_, kBytes, /*non_blocking=*/false);
  EXPECT_EQ(machine_->host_time(0), machine_->stream_time(0, 0));
}

TEST_F(CopyTimeTest, CopyFromPageableMemoryHoldsTheHostWhateverIsAsked) {
  make();
  const std::vector<char> pageable(kBytes);
  copy_in(*machine_, 0, pageable.data(), device_, kBytes, /*non_blocking=*/true);
  EXPECT_EQ(machine_->host_time(0), machine_->stream_time(0, 0));
}

TEST_F(CopyTimeTest, CopyInsideTheDeviceReadsAndWritesItsMemory) {
  make();
  machine_->copy(0, 0, {0, device_, 0, device_upper(), kBytes, true, "clone"});
  EXPECT_EQ(at(0), kHostOp + kLaunch + 20'000);
  EXPECT_EQ(machine_->counters(0).num_copies_in + machine_->counters(0).num_copies_out, 0);
}

TEST_F(CopyTimeTest, PeersHaveALinkOfTheirOwn) {
  make();
  void* there = machine_->allocate(1, 0, kBytes);
  copy_in(*machine_, side_, pinned_, device_, kBytes);
  machine_->copy(0, 0, {0, device_upper(), 1, there, kBytes, true, "peer"});
  EXPECT_EQ(at(0), 2 * kHostOp + copy_time(kBytes)) << "not behind the copy from the host";
  machine_->free(there);
}

TEST_F(CopyTimeTest, SlowdownStretchesTheBytesAndNotTheLatency) {
  make();
  Faults faults;
  faults.copy_slowdown = 10;
  machine_->set_faults(faults);
  copy_in(*machine_, 0, pinned_, device_, kBytes);
  EXPECT_EQ(at(0), kHostOp + kCopyLatency + 10 * static_cast<Nanos>(kBytes / 10));
}

TEST(AllocationTime, SystemAllocationsTakeHostTimeAndCachedOnesNone) {
  Simulator sim(tiny_machine());
  void* a = sim.allocate(0, 0, 4096);
  EXPECT_EQ(sim.host_time(0), 10'000);
  sim.free(a);
  sim.free(sim.allocate(0, 0, 4096));
  EXPECT_EQ(sim.host_time(0), 10'000);
  void* pinned = sim.allocate_pinned(1'000'000);
  EXPECT_EQ(sim.host_time(0), 20'000 + 100'000);
  sim.free_pinned(pinned);
}

// A program of random work over two devices; returns everything one can see of it.
std::string random_program(uint64_t seed) {
  SimulatorOptions options = tiny_machine();
  options.trace = true;
  options.faults.copy_jitter = 0.5;
  options.faults.seed = 7;
  Simulator sim(options);
  uint64_t state = seed;
  const auto draw = [&state] { return (state = state * 6364136223846793005ULL + 1) >> 33; };
  const StreamId side = sim.new_stream(0);
  void* pinned = sim.allocate_pinned(kMiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 500; ++i) {
    const StreamId stream = draw() % 2 == 0 ? 0 : side;
    const StreamId other = stream == 0 ? side : 0;
    switch (draw() % 5) {
      case 0:
        blocks.push_back(sim.allocate(0, stream, 1 + draw() % 100'000));
        break;
      case 1:
        run(sim, stream, "work", {}, {static_cast<double>(draw() % 1'000'000)});
        break;
      case 2:
        order(sim, stream, other);
        break;
      case 3:
        if (!blocks.empty()) {
          copy_in(sim, stream, pinned, blocks.back(), 1, draw() % 8 != 0);
        }
        break;
      default:
        if (!blocks.empty()) {
          sim.free(blocks.back());
          blocks.pop_back();
        }
    }
  }
  return sim.trace_json() + std::to_string(sim.host_time(0)) + " " +
         std::to_string(sim.num_races());
}

TEST(Determinism, SameProgramGivesTheSameFigures) {
  EXPECT_EQ(random_program(1), random_program(1));
  EXPECT_NE(random_program(1), random_program(2));
}

}  // namespace
}  // namespace swapline::sim
