// Operators that address pinned memory themselves: their time on the link, beside copies, and their
// order with copies, the host and the memory's end.
#include "tests/sim/core/machine.h"

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace swapline::sim {
namespace {

constexpr size_t kBytes = 1'000'000;
constexpr Nanos kTransfer = 100'000;  // of kBytes at preset tiny's 10 bytes a nanosecond
constexpr double kFlopsPerMicro = 1e6;

class MappedTest : public ::testing::Test {
 protected:
  MappedTest() { make(); }

  void make(SimulatorOptions options = tiny_machine()) {
    sim_ = std::make_unique<Simulator>(std::move(options));
    device_ = sim_->allocate(0, 0, kBytes);
    pinned_ = static_cast<char*>(sim_->allocate_pinned(2 * kBytes));
    other_ = pinned_ + kBytes;
    side_ = sim_->new_stream(0);
    start_ = sim_->host_time(0);
  }
  // An operator that reads and writes host memory while it computes.
  void run_mapped(StreamId stream, double in, double out, double micros = 0) {
    const Cost cost{
        .flops = micros * kFlopsPerMicro, .mapped_bytes_in = in, .mapped_bytes_out = out};
    run(*sim_, stream, "mapped", {}, cost);
  }
  // Time since the machine was ready.
  Nanos at(StreamId stream) const { return sim_->stream_time(0, stream) - start_; }
  void expect_one_race(const std::string& first, const std::string& second) {
    ASSERT_EQ(sim_->num_races(), 1);
    EXPECT_EQ(sim_->races()[0].first.op, first);
    EXPECT_EQ(sim_->races()[0].second.op, second);
    EXPECT_TRUE(sim_->races()[0].is_host_memory);
  }

  std::unique_ptr<Simulator> sim_;
  void* device_ = nullptr;
  char* pinned_ = nullptr;
  char* other_ = nullptr;
  StreamId side_ = 0;
  Nanos start_ = 0;
};

TEST_F(MappedTest, ReadsTakeTheTimeOfTheirBytesOnTheLink) {
  run_mapped(0, kBytes, 0);
  EXPECT_EQ(at(0), kHostOp + kLaunch + kTransfer);
  EXPECT_EQ(sim_->counters(0).mapped_bytes_in, static_cast<int64_t>(kBytes));
  EXPECT_EQ(sim_->counters(0).mapped_bytes_out, 0);
  EXPECT_EQ(sim_->counters(0).num_copies_in, 0);
  EXPECT_EQ(sim_->counters(0).bytes_in, 0);
}

TEST_F(MappedTest, DirectionsHaveTheirOwnRates) {
  SimulatorOptions options = tiny_machine();
  options.spec.d2h_bytes_per_s /= 4;
  make(options);
  run_mapped(0, kBytes, kBytes);
  EXPECT_EQ(at(0), kHostOp + kLaunch + 4 * kTransfer) << "the slower one binds";
}

TEST_F(MappedTest, ReadsAndWritesGoOnAtOnceOnAFullDuplexLink) {
  run_mapped(0, kBytes, kBytes);
  EXPECT_EQ(at(0), kHostOp + kLaunch + kTransfer);
}

TEST_F(MappedTest, ReadsAndWritesTakeTurnsOnAHalfDuplexLink) {
  SimulatorOptions options = tiny_machine();
  options.spec.full_duplex = false;
  options.spec.d2h_bytes_per_s /= 2;
  make(options);
  run_mapped(0, kBytes, kBytes);
  EXPECT_EQ(at(0), kHostOp + kLaunch + kTransfer + 2 * kTransfer);
}

TEST_F(MappedTest, ArithmeticOrDeviceMemoryBindsWhereItTakesLonger) {
  run_mapped(0, kBytes, kBytes, /*micros=*/150);
  EXPECT_EQ(at(0), kHostOp + kLaunch + 150'000);
  run(*sim_, side_, "mapped", {}, {.bytes = 3e7, .mapped_bytes_in = kBytes});  // 100 GB/s
  EXPECT_EQ(at(side_), 2 * kHostOp + kLaunch + 300'000);
}

TEST_F(MappedTest, CopyInFlightDelaysAnOperatorInItsDirection) {
  copy_in(*sim_, side_, pinned_, device_, kBytes);
  run_mapped(0, kBytes, 0);
  EXPECT_EQ(at(0), kHostOp + copy_time(kBytes) + kTransfer);
}

TEST_F(MappedTest, CopyInTheOtherDirectionDelaysNothing) {
  copy_out(*sim_, side_, device_, pinned_, kBytes);
  run_mapped(0, kBytes, 0);
  EXPECT_EQ(at(0), 2 * kHostOp + kLaunch + kTransfer);
}

TEST_F(MappedTest, OperatorDelaysACopyInItsDirection) {
  run_mapped(0, 0, kBytes);
  copy_in(*sim_, side_, pinned_, device_, kBytes);
  EXPECT_EQ(at(side_), 2 * kHostOp + copy_time(kBytes)) << "the other direction is free";
  copy_out(*sim_, side_, device_, pinned_, kBytes);
  EXPECT_EQ(at(side_), 2 * kHostOp + 2 * copy_time(kBytes)) << "over before the copy in was";
  run_mapped(0, 0, 10 * kBytes);
  const Nanos operator_end = at(0);
  copy_out(*sim_, side_, device_, pinned_, kBytes);
  EXPECT_EQ(at(side_), operator_end + copy_time(kBytes));
}

TEST_F(MappedTest, OperatorUsesTheGapsBetweenCopies) {
  run(*sim_, side_, "busy", {}, {.flops = 50 * kFlopsPerMicro});
  copy_in(*sim_, side_, pinned_, device_, kBytes);  // from 1 + 2 + 50 µs on
  run_mapped(0, kBytes, 0);
  const Nanos before_copy = 53'000 - (3 * kHostOp + kLaunch);
  EXPECT_EQ(at(0), at(side_) + kTransfer - before_copy);
}

TEST_F(MappedTest, LinkIsNeverIdleBesideManyOperatorsAndCopies) {
  const StreamId second_side = sim_->new_stream(0);
  const double part = kBytes / 10.0;
  for (int i = 0; i < 10; ++i) {
    run_mapped(0, part, 0);
    copy_in(*sim_, side_, pinned_, device_, kBytes / 10);
    run_mapped(second_side, part, 0);
  }
  const Nanos last = std::max({at(0), at(side_), at(second_side)});
  EXPECT_EQ(last, kHostOp + kLaunch + 3 * kTransfer + 10 * kCopyLatency);
}

TEST_F(MappedTest, SlowLinkSlowsTheAccessesAndNotTheLatency) {
  Faults faults;
  faults.copy_slowdown = 10;
  sim_->set_faults(faults);
  run_mapped(0, kBytes, 0, /*micros=*/20);
  EXPECT_EQ(at(0), kHostOp + kLaunch + 10 * kTransfer);
}

TEST_F(MappedTest, JitterIsDrawnOnlyForOperatorsThatUseTheLink) {
  Faults faults;
  faults.copy_jitter = 0.5;
  const auto time_after = [&](bool with_plain_operators) {
    make();
    sim_->set_faults(faults);
    for (int i = 0; i < (with_plain_operators ? 5 : 0); ++i) {
      run(*sim_, side_, "plain");
    }
    const Nanos before = sim_->host_time(0);
    run_mapped(0, kBytes, 0);
    return sim_->stream_time(0, 0) - before;
  };
  const Nanos alone = time_after(false);
  EXPECT_GT(alone, kHostOp + kLaunch + kTransfer);
  EXPECT_EQ(time_after(true), alone);
}

TEST_F(MappedTest, CopyOfTheSameBytesMustBeWaitedFor) {
  copy_in(*sim_, side_, pinned_, device_, kBytes);
  run(*sim_, 0, "update", {reads(pinned_, kBytes)});
  EXPECT_EQ(sim_->num_races(), 0) << "both read";
  run(*sim_, 0, "update", {writes(pinned_, kBytes)});
  expect_one_race("copy in", "update");
  sim_->clear_races();
  copy_out(*sim_, side_, device_, pinned_, kBytes);
  expect_one_race("update", "copy out");
}

TEST_F(MappedTest, OrderedCopiesAndOperatorsAreClean) {
  run(*sim_, 0, "update", {writes(pinned_, kBytes)});
  order(*sim_, 0, side_);
  copy_in(*sim_, side_, pinned_, device_, kBytes);
  order(*sim_, side_, 0);
  run(*sim_, 0, "update", {writes(pinned_, kBytes)});
  run(*sim_, 0, "elsewhere", {writes(other_, kBytes)});
  EXPECT_EQ(sim_->num_races(), 0);
}

TEST_F(MappedTest, HostReadMustWaitForTheOperator) {
  run(*sim_, 0, "update", {writes(pinned_, kBytes)});
  sim_->host_access("host reads", other_, kBytes, false);
  EXPECT_EQ(sim_->num_races(), 0) << "other bytes";
  sim_->host_access("host reads", pinned_, 1, false);
  expect_one_race("update", "host reads");
  sim_->clear_races();
  sim_->synchronize_stream(0, 0);
  sim_->host_access("host reads", pinned_, kBytes, false);
  EXPECT_EQ(sim_->num_races(), 0);
}

TEST_F(MappedTest, HostWriteIsSeenByWhatIsLaunchedNext) {
  run(*sim_, 0, "update", {reads(pinned_, kBytes)});
  sim_->host_access("host writes", pinned_ + 8, 1, true);
  expect_one_race("update", "host writes");
  sim_->clear_races();
  run(*sim_, 0, "update", {reads(pinned_, kBytes)});
  EXPECT_EQ(sim_->num_races(), 0);
}

TEST_F(MappedTest, FreeUnderARunningOperatorIsFound) {
  for (const bool is_write : {false, true}) {
    make();
    run(*sim_, 0, "first", {access(pinned_, kBytes, is_write)});
    run(*sim_, 0, "last", {access(other_, 100, is_write)});
    sim_->free_pinned(pinned_);
    expect_one_race("last", "free of pinned memory");
    EXPECT_EQ(sim_->races()[0].end - sim_->races()[0].begin, 100U);
    EXPECT_EQ(sim_->races()[0].second.stream, kHost);
  }
}

TEST_F(MappedTest, FreeUnderOperatorsOfTwoStreamsNamesBoth) {
  run(*sim_, 0, "a", {reads(pinned_, kBytes)});
  run(*sim_, side_, "b", {reads(pinned_, kBytes)});
  sim_->free_pinned(pinned_);
  ASSERT_EQ(sim_->num_races(), 2);
  EXPECT_EQ(sim_->races()[0].first.op, "a");
  EXPECT_EQ(sim_->races()[1].first.op, "b");
}

TEST_F(MappedTest, FreeAfterTheHostWaitedIsCleanAndForgotten) {
  run(*sim_, 0, "update", {writes(pinned_, kBytes)});
  sim_->synchronize_stream(0, 0);
  sim_->free_pinned(pinned_);
  EXPECT_EQ(sim_->num_races(), 0);
}

TEST_F(MappedTest, NothingIsReportedWithTheCheckerOff) {
  SimulatorOptions options = tiny_machine();
  options.check_races = false;
  make(options);
  run(*sim_, 0, "update", {writes(pinned_, kBytes)});
  sim_->free_pinned(pinned_);
  EXPECT_EQ(sim_->num_races(), 0);
}

TEST_F(MappedTest, LateCopyHappensBeforeAnOperatorOrderedBehindIt) {
  SimulatorOptions options = tiny_machine();
  options.late_copies = true;
  make(options);
  std::memset(device_, 7, kBytes);
  copy_out(*sim_, side_, device_, pinned_, kBytes);
  run(*sim_, 0, "unordered");
  EXPECT_FALSE(is_filled(pinned_, kBytes, 7)) << "an operator that does not wait finds poison";
  order(*sim_, side_, 0);
  sim_->begin_op(0, 0, "update", std::vector<Access>{reads(pinned_, kBytes)});
  EXPECT_TRUE(is_filled(pinned_, kBytes, 7));
  sim_->end_op(0, 0, "update", {}, {});
}

TEST_F(MappedTest, TraceMarksTheOperatorWithItsBytes) {
  SimulatorOptions options = tiny_machine();
  options.trace = true;
  make(options);
  run(*sim_, 0, "plain");
  run_mapped(0, 3000, 2000);
  int num_found = 0;
  const auto trace = nlohmann::json::parse(sim_->trace_json());
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name") == "mapped") {
      ++num_found;
      EXPECT_EQ(event.at("args").at("mapped_bytes_in"), 3000);
      EXPECT_EQ(event.at("args").at("mapped_bytes_out"), 2000);
    } else if (event.at("ph") == "X") {
      EXPECT_FALSE(event.contains("args")) << event;
    }
  }
  EXPECT_EQ(num_found, 1);
}

}  // namespace
}  // namespace swapline::sim
