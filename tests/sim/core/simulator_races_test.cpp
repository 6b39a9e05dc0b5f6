// The race checker on whole programs: streams, events, the host, pinned memory, reused memory.
#include "tests/sim/core/machine.h"

#include <string>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

constexpr size_t kBytes = 4096;

class RacesTest : public ::testing::Test {
 protected:
  RacesTest()
      : side_(sim_.new_stream(0)),
        data_(sim_.allocate(0, 0, kBytes)),
        pinned_(static_cast<char*>(sim_.allocate_pinned(kBytes))) {}

  void expect_one_race(const std::string& first, const std::string& second) {
    ASSERT_EQ(sim_.num_races(), 1) << (sim_.num_races() == 0 ? "" : sim_.races().back().describe());
    EXPECT_EQ(sim_.races()[0].first.op, first);
    EXPECT_EQ(sim_.races()[0].second.op, second);
  }
  void expect_no_race() { EXPECT_EQ(sim_.num_races(), 0) << sim_.races().front().describe(); }

  Simulator sim_{tiny_machine()};
  StreamId side_;
  void* data_;
  char* pinned_;
};

TEST_F(RacesTest, MissingWaitBetweenStreamsIsFound) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  run(sim_, side_, "consume", {reads(data_, kBytes)});
  expect_one_race("produce", "consume");
}

TEST_F(RacesTest, RightWaitIsClean) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  order(sim_, 0, side_);
  run(sim_, side_, "consume", {reads(data_, kBytes)});
  order(sim_, side_, 0);
  run(sim_, 0, "produce again", {writes(data_, kBytes)});
  expect_no_race();
}

TEST_F(RacesTest, WaitForAnEventRecordedTooEarlyIsFound) {
  const auto early = sim_.record(0, 0);
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  sim_.wait(0, side_, *early);
  run(sim_, side_, "consume", {reads(data_, kBytes)});
  expect_one_race("produce", "consume");
}

TEST_F(RacesTest, OrderDoesNotComeFromVirtualTime) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  sim_.advance_host(0, 1'000'000);
  run(sim_, side_, "consume", {reads(data_, kBytes)});
  expect_one_race("produce", "consume");
}

TEST_F(RacesTest, HostThatWaitedOrdersWhatItLaunchesNext) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  sim_.synchronize_stream(0, 0);
  run(sim_, side_, "consume", {reads(data_, kBytes)});
  expect_no_race();
}

TEST_F(RacesTest, QueryThatSaysDoneOrdersAndOneThatSaysNotDoesNot) {
  run(sim_, 0, "produce", {writes(data_, kBytes)}, {1e9});
  const auto event = sim_.record(0, 0);
  EXPECT_FALSE(sim_.is_done(*event));
  run(sim_, side_, "too early", {reads(data_, kBytes)});
  expect_one_race("produce", "too early");
  sim_.clear_races();
  sim_.advance_host(0, 10'000'000);
  EXPECT_TRUE(sim_.is_done(*event));
  run(sim_, side_, "in time", {reads(data_, kBytes)});
  expect_no_race();
}

TEST_F(RacesTest, NewStreamIsNotOrderedBehindOthers) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  const StreamId fresh = sim_.new_stream(0);
  run(sim_, fresh, "consume", {reads(data_, kBytes)});
  expect_one_race("produce", "consume");
}

TEST_F(RacesTest, ReadsInParallelAreClean) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  order(sim_, 0, side_);
  run(sim_, 0, "read", {reads(data_, kBytes)});
  run(sim_, side_, "read too", {reads(data_, kBytes)});
  expect_no_race();
}

TEST_F(RacesTest, HalvesOfABufferMayBeUsedInParallel) {
  char* upper = static_cast<char*>(data_) + kBytes / 2;
  run(sim_, 0, "lower", {writes(data_, kBytes / 2)});
  run(sim_, side_, "upper", {writes(upper, kBytes / 2)});
  expect_no_race();
  run(sim_, side_, "one byte too many", {writes(upper - 1, 1)});
  expect_one_race("lower", "one byte too many");
  EXPECT_EQ(sim_.races()[0].end - sim_.races()[0].begin, 1U);
}

TEST_F(RacesTest, OutputsKnownOnlyAfterwardsAreChecked) {
  run(sim_, side_, "read", {reads(data_, kBytes)});
  sim_.begin_op(0, 0, "resized", {});
  const Access output = writes(data_, kBytes);
  sim_.end_op(0, 0, "resized", {}, {&output, 1});
  expect_one_race("read", "resized");
}

TEST_F(RacesTest, CopyReadsItsSourceAndWritesItsDestination) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  copy_out(sim_, side_, data_, pinned_, kBytes);
  expect_one_race("produce", "copy out");
  sim_.clear_races();
  order(sim_, 0, side_);
  copy_in(sim_, side_, pinned_, data_, kBytes);
  expect_no_race();
  run(sim_, 0, "consume", {reads(data_, kBytes)});
  expect_one_race("copy in", "consume");
}

TEST_F(RacesTest, ReuseOfMemoryThatASideStreamStillReadsIsFound) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  order(sim_, 0, side_);
  copy_out(sim_, side_, data_, pinned_, kBytes);
  sim_.free(data_);
  void* next = sim_.allocate(0, 0, kBytes);
  ASSERT_EQ(next, data_) << "the test needs the same block again";
  run(sim_, 0, "next owner", {writes(next, kBytes)});
  expect_one_race("copy out", "next owner");
}

TEST_F(RacesTest, ReuseOrderedByTheStreamIsClean) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  sim_.free(data_);
  run(sim_, 0, "next owner", {writes(sim_.allocate(0, 0, kBytes), kBytes)});
  expect_no_race();
}

TEST_F(RacesTest, ReuseBehindAWaitForTheSideStreamIsClean) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  order(sim_, 0, side_);
  copy_out(sim_, side_, data_, pinned_, kBytes);
  order(sim_, side_, 0);
  sim_.free(data_);
  run(sim_, 0, "next owner", {writes(sim_.allocate(0, 0, kBytes), kBytes)});
  expect_no_race();
}

TEST_F(RacesTest, RecordedStreamKeepsTheBlockUntilItIsDone) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  order(sim_, 0, side_);
  copy_out(sim_, side_, data_, pinned_, kBytes);
  sim_.record_stream(data_, 0, side_);
  sim_.free(data_);
  EXPECT_EQ(sim_.memory_stats(0).held_bytes, kBytes);
  void* next = sim_.allocate(0, 0, kBytes);
  EXPECT_NE(next, data_);
  run(sim_, 0, "next owner", {writes(next, kBytes)});
  sim_.advance_host(0, 10'000'000);
  void* after = sim_.allocate(0, 0, kBytes);
  EXPECT_EQ(after, data_);
  EXPECT_EQ(sim_.memory_stats(0).held_bytes, 0U);
  run(sim_, 0, "last owner", {writes(after, kBytes)});
  expect_no_race();
}

TEST_F(RacesTest, FlushedSegmentStartsWithoutHistory) {
  run(sim_, side_, "last use", {writes(data_, kBytes)});
  sim_.free(data_);
  sim_.empty_cache(0);
  void* next = sim_.allocate(0, 0, kBytes);
  run(sim_, 0, "next owner", {writes(next, kBytes)});
  expect_no_race();
}

TEST_F(RacesTest, HostReadOfAPinnedBufferInFlightIsFound) {
  copy_out(sim_, 0, data_, pinned_, kBytes);
  sim_.host_access("host reads", pinned_, kBytes, false);
  expect_one_race("copy out", "host reads");
  EXPECT_TRUE(sim_.races()[0].is_host_memory);
  EXPECT_EQ(sim_.races()[0].second.stream, kHost);
}

TEST_F(RacesTest, HostReadAfterTheHostWaitedIsClean) {
  copy_out(sim_, 0, data_, pinned_, kBytes);
  sim_.synchronize(*sim_.record(0, 0));
  sim_.host_access("host reads", pinned_, kBytes, false);
  expect_no_race();
}

TEST_F(RacesTest, HostWriteDuringACopyToTheDeviceIsFound) {
  sim_.host_access("fill", pinned_, kBytes, true);
  copy_in(sim_, 0, pinned_, data_, kBytes);
  expect_no_race();
  sim_.host_access("host reads", pinned_, kBytes, false);
  expect_no_race();
  sim_.host_access("host writes", pinned_ + 100, 1, true);
  expect_one_race("copy in", "host writes");
}

TEST_F(RacesTest, BlockingCopyLeavesThePinnedBufferToTheHost) {
  copy_out(sim_, 0, data_, pinned_, kBytes, /*non_blocking=*/false);
  sim_.host_access("host writes", pinned_, kBytes, true);
  expect_no_race();
}

TEST_F(RacesTest, PinnedBufferReusedByTwoStreamsIsFound) {
  copy_out(sim_, 0, data_, pinned_, kBytes);
  void* other = sim_.allocate(0, side_, kBytes);
  copy_in(sim_, side_, pinned_, other, kBytes);
  expect_one_race("copy out", "copy in");
}

TEST_F(RacesTest, DevicesAreOrderedByEventsToo) {
  void* there = sim_.allocate(1, 0, kBytes);
  run(sim_, 0, "produce", {writes(there, kBytes)}, {}, 1);
  sim_.copy(0, 0, {1, there, 0, data_, kBytes, true, "peer copy"});
  expect_one_race("produce", "peer copy");
  sim_.clear_races();
  sim_.wait(0, 0, *sim_.record(1, 0));
  sim_.copy(0, 0, {1, there, 0, data_, kBytes, true, "peer copy"});
  expect_no_race();
}

TEST_F(RacesTest, ReportNamesBothOperatorsBothStreamsTheBytesAndTheMissingWait) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  run(sim_, side_, "consume", {reads(data_, 100)});
  ASSERT_EQ(sim_.num_races(), 1);
  const std::string text = sim_.races()[0].describe();
  for (const char* part : {"device memory",
                           "100 bytes",
                           "'produce' writes",
                           "'consume' reads",
                           "stream 0 of device 0",
                           "stream 1 of device 0",
                           "must wait for an event"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
}

TEST_F(RacesTest, EveryRaceIsCountedAndTheFirstHundredKept) {
  for (int i = 0; i < 150; ++i) {
    run(sim_, 0, "a", {writes(data_, kBytes)});
    run(sim_, side_, "b", {writes(data_, kBytes)});
  }
  EXPECT_EQ(sim_.num_races(), 299);
  EXPECT_EQ(sim_.races().size(), 100U);
  sim_.clear_races();
  EXPECT_EQ(sim_.num_races(), 0);
  EXPECT_TRUE(sim_.races().empty());
}

TEST(RacesOff, NothingIsCheckedWhenTheCheckerIsOff) {
  SimulatorOptions options = tiny_machine();
  options.check_races = false;
  Simulator sim(options);
  void* data = sim.allocate(0, 0, kBytes);
  const StreamId side = sim.new_stream(0);
  run(sim, 0, "a", {writes(data, kBytes)});
  run(sim, side, "b", {writes(data, kBytes)});
  EXPECT_EQ(sim.num_races(), 0);
}

}  // namespace
}  // namespace swapline::sim
