// What hardware would not forgive is said, and faults come when they are asked for.
#include "harness/machine/control.h"
#include "tests/harness/machine_fixture.h"

namespace swapline::harness {

// No vendor's functions are in front of the machine here.
Stream& stream_of_vendor(void* handle) {
  return *static_cast<Stream*>(handle);
}

namespace {

using testing::MachineTest;

TEST_F(MachineTest, AnotherDevicesMemoryAndNoMemoryAtAllAreWrong) {
  auto* other = static_cast<char*>(machine_.allocate_device(kBytes, 1));
  machine_.fill(main_, other, 0, kBytes);
  EXPECT_EQ(count("WRONG"), 1);
  machine_.synchronize_device(0);
  ASSERT_TRUE(machine_.free_device(other));
  machine_.launch(main_, "late", {{other, kBytes, false}}, [] {});
  EXPECT_EQ(count("WRONG"), 2);
}

TEST_F(MachineTest, AnEventOfAnotherDeviceIsWrongAndOneNeverRecordedIsNoWait) {
  machine_.record(main_, *machine_.make_event(1, 0));
  EXPECT_EQ(count("WRONG"), 1);
  machine_.wait(main_, *event_);
  EXPECT_EQ(count("WARNING"), 1);
  EXPECT_EQ(count("wait"), 0);
}

TEST_F(MachineTest, MemoryEndsAtItsCapacity) {
  machine_.memory.device_capacity = 4 * kBytes;
  machine_.memory.pinned_capacity = 4 * kBytes;
  EXPECT_EQ(machine_.allocate_device(4 * kBytes, 0), nullptr);
  EXPECT_EQ(machine_.allocate_pinned(4 * kBytes, 0), nullptr);
  EXPECT_EQ(count("REFUSED"), 2);
  EXPECT_NE(machine_.allocate_device(4 * kBytes, 1), nullptr) << "each device has its own";
  ASSERT_TRUE(machine_.free_device(data_));
  EXPECT_EQ(machine_.memory.device_bytes(0), 0U);
  EXPECT_NE(machine_.allocate_device(4 * kBytes, 0), nullptr);
}

TEST_F(MachineTest, WhatIsToFailFailsOnce) {
  machine_.fail("device-allocation", 1);
  machine_.fail("copy", 0);
  EXPECT_NE(machine_.allocate_device(kBytes, 0), nullptr);
  EXPECT_EQ(machine_.allocate_device(kBytes, 0), nullptr);
  EXPECT_NE(machine_.allocate_device(kBytes, 0), nullptr);
  EXPECT_FALSE(machine_.copy(main_, data_, pinned_, kBytes));
  EXPECT_TRUE(machine_.copy(main_, data_, pinned_, kBytes));
}

TEST_F(MachineTest, FreeingWaitsForAllDevicesAndOnlyFreesWhatIsThere) {
  machine_.set_mode("late");
  char* data = data_;
  add_one(main_, data);
  ASSERT_TRUE(machine_.free_device(data));
  EXPECT_EQ(count("BLOCKS"), 1);
  EXPECT_FALSE(machine_.free_device(data));
  EXPECT_FALSE(machine_.free_pinned(pinned_ + 1));
}

TEST(ControlTest, ReachesTheProcesssMachine) {
  EXPECT_EQ(harness_set_mode("late"), 0);
  EXPECT_EQ(harness_set_mode("soon"), -1);
  harness_clear_log();
  Machine& machine = Machine::get();
  auto* data = static_cast<char*>(machine.allocate_device(64, 0));
  const auto enqueue = [&] {
    const HarnessTouchedBytes touched = {data, 64, 1};
    return harness_launch(
        &machine.default_stream(0),
        "writes",
        &touched,
        1,
        [](void* at) { *static_cast<char*>(at) = 9; },
        data,
        [](void*) {});
  };
  ASSERT_EQ(enqueue(), 0);
  EXPECT_NE(data[0], 9);
  harness_finish(&machine.default_stream(0));
  EXPECT_EQ(data[0], 9);
  EXPECT_STREQ(harness_line(harness_num_lines() - 1), "op s0 writes");
  EXPECT_EQ(harness_count("op"), 1);
  EXPECT_EQ(harness_num_races(), 0);
  harness_fail("launch", 0);
  EXPECT_EQ(enqueue(), -1);
  harness_break(1);
  EXPECT_EQ(enqueue(), -1);
  harness_break(0);
  EXPECT_EQ(enqueue(), 0);
  harness_finish(&machine.default_stream(0));
  ASSERT_TRUE(machine.free_device(data));
}

}  // namespace
}  // namespace swapline::harness
