// Work runs when its mode says so, in order, and the log and the race checker see it.
#include "tests/harness/machine_fixture.h"

#include <algorithm>

namespace swapline::harness {
namespace {

using testing::MachineTest;

TEST_F(MachineTest, EagerRunsAtOnceAndLateWhenTheHostWaits) {
  machine_.set_mode("eager");
  copy_in(data_);
  EXPECT_EQ(data_[0], 1);

  machine_.set_mode("late");
  add_one(side_, data_);
  EXPECT_EQ(data_[0], 1);
  EXPECT_FALSE(machine_.is_done(side_));
  machine_.synchronize(side_);
  EXPECT_EQ(data_[0], 2);
  EXPECT_EQ(count("HOSTWAIT"), 1);
  expect_races(0);
}

TEST_F(MachineTest, LateCopiesHoldWhatIsBehindThemAndNothingElse) {
  machine_.set_mode("late-copies");
  auto* other = static_cast<char*>(machine_.allocate_device(kBytes, 0));
  machine_.fill(main_, other, 0, kBytes);
  EXPECT_EQ(other[0], 0);
  copy_in(data_);
  record(side_);
  EXPECT_FALSE(machine_.is_done(*event_));
  machine_.wait(main_, *event_);
  add_one(main_, data_);
  EXPECT_NE(data_[0], 2);
  machine_.synchronize(main_);
  EXPECT_EQ(data_[0], 2);
  EXPECT_TRUE(machine_.is_done(*event_));
  expect_races(0);
}

TEST_F(MachineTest, LateComputeHoldsKernels) {
  machine_.set_mode("late-compute");
  copy_in(data_);
  EXPECT_EQ(data_[0], 1);
  add_one(side_, data_);
  EXPECT_EQ(data_[0], 1);
  machine_.synchronize_device(0);
  EXPECT_EQ(data_[0], 2);
}

TEST_F(MachineTest, ASeedMakesTheSameScheduleAgain) {
  const auto when_done = [this](const std::string& mode) {
    EXPECT_TRUE(machine_.set_mode(mode));
    std::vector<bool> done;
    for (int i = 0; i < 60; ++i) {
      add_one(i % 2 == 0 ? main_ : side_, data_);
      done.push_back(machine_.is_done(side_));
    }
    machine_.synchronize_device(0);
    return done;
  };
  const auto once = when_done("random:7");
  EXPECT_EQ(when_done("random:7"), once);
  EXPECT_NE(when_done("random:8"), once);
  EXPECT_NE(std::count(once.begin(), once.end(), true), 0);
}

TEST_F(MachineTest, ThereIsNoOtherMode) {
  EXPECT_FALSE(machine_.set_mode("soon"));
}

TEST_F(MachineTest, AWaitOrdersAndItsAbsenceIsARace) {
  for (const char* mode : {"eager", "late", "late-copies", "late-compute", "random:1"}) {
    machine_.set_mode(mode);
    machine_.synchronize_device(0);
    machine_.clear_races();
    copy_in(data_);
    record(side_);
    machine_.wait(main_, *event_);
    add_one(main_, data_);
    machine_.synchronize_device(0);
    expect_races(0);
    EXPECT_EQ(data_[0], 2);
    copy_in(data_);
    add_one(main_, data_);
    expect_races(2);  // what it reads and what it writes
  }
}

TEST_F(MachineTest, ADroppedWaitIsARaceAndWrongBytes) {
  machine_.set_mode("late");
  copy_in(data_);
  record(side_);
  machine_.drop_waits(main_.number, side_.number);
  machine_.wait(main_, *event_);
  add_one(main_, data_);
  machine_.synchronize(main_);
  EXPECT_NE(data_[0], 2);
  expect_races(2);
  EXPECT_EQ(count("DROPPED"), 1);
}

TEST_F(MachineTest, TheHostIsOrderedBehindWhatItAskedForAndFoundDone) {
  machine_.set_mode("eager");
  copy_in(data_);
  record(side_);
  ASSERT_TRUE(machine_.is_done(*event_));
  add_one(main_, data_);  // enqueued after the host knew
  expect_races(0);
}

TEST_F(MachineTest, PageableMemoryIsStagedOnTheWayInAndBlocksOnTheWayOut) {
  machine_.set_mode("late");
  std::vector<char> pageable(kBytes, 5);
  ASSERT_TRUE(machine_.copy(main_, data_, pageable.data(), kBytes));
  pageable.assign(kBytes, 6);  // was read already
  EXPECT_EQ(count("STAGED"), 1);
  EXPECT_EQ(count("BLOCKS"), 0);
  ASSERT_TRUE(machine_.copy(main_, pageable.data(), data_, kBytes));
  EXPECT_EQ(pageable[0], 5);
  EXPECT_EQ(count("BLOCKS"), 1);
}

TEST_F(MachineTest, AnUnorderedCopyOverWorkUnderWayIsARace) {
  machine_.set_mode("late");
  add_one(main_, data_);
  std::vector<char> pageable(kBytes);
  ASSERT_TRUE(machine_.copy_unordered(data_, pageable.data(), kBytes));
  expect_races(1);
}

TEST_F(MachineTest, TheLogHasEachCallInOrder) {
  machine_.set_mode("eager");
  copy_in(data_);
  record(side_);
  machine_.wait(main_, *event_);
  add_one(main_, data_);
  std::vector<std::string> words;
  for (const std::string& line : machine_.log.lines()) {
    words.push_back(line.substr(0, line.find(" 0x")));
  }
  const std::string side = stream_name(side_);
  const std::string event = event_name(*event_);
  EXPECT_EQ(words,
            (std::vector<std::string>{"copy " + side + " pinned->device 1024 B",
                                      "record " + side + " " + event,
                                      "wait s0 " + event + " of " + side,
                                      "op s0 add one"}));
}

}  // namespace
}  // namespace swapline::harness
