// When the bytes of a copy move: at once, or late and only for those who waited.
#include "tests/sim/core/machine.h"

#include <cmath>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

constexpr size_t kBytes = 4096;
constexpr unsigned char kPoison = 0xff;
constexpr unsigned char kOld = 0x11;
constexpr unsigned char kFresh = 0x22;

class CopyTest : public ::testing::Test {
 protected:
  explicit CopyTest(bool is_late = false) : sim_(options(is_late)) {
    side_ = sim_.new_stream(0);
    data_ = static_cast<unsigned char*>(sim_.allocate(0, 0, kBytes));
    pinned_ = static_cast<unsigned char*>(sim_.allocate_pinned(kBytes));
    std::memset(data_, kOld, kBytes);
    std::memset(pinned_, kFresh, kBytes);
  }
  static SimulatorOptions options(bool is_late) {
    SimulatorOptions options = tiny_machine();
    options.late_copies = is_late;
    return options;
  }
  bool device_has(unsigned char value) const { return is_filled(data_, kBytes, value); }
  bool host_has(unsigned char value) const { return is_filled(pinned_, kBytes, value); }

  Simulator sim_;
  StreamId side_ = 0;
  unsigned char* data_ = nullptr;
  unsigned char* pinned_ = nullptr;
};

class LateCopyTest : public CopyTest {
 protected:
  LateCopyTest() : CopyTest(true) {}
};

TEST_F(CopyTest, EagerCopyMovesItsBytesAtOnce) {
  copy_in(sim_, side_, pinned_, data_, kBytes);
  EXPECT_TRUE(device_has(kFresh));
}

TEST_F(CopyTest, CopyOfNoBytesIsNothing) {
  copy_in(sim_, side_, nullptr, nullptr, 0);
  EXPECT_EQ(sim_.counters(0).num_copies_in, 0);
  EXPECT_EQ(sim_.host_time(0), sim_.host_time(0));
}

TEST_F(CopyTest, OverlappingCopyInsideTheDeviceIsRight) {
  for (size_t i = 0; i < kBytes; ++i) {
    data_[i] = static_cast<unsigned char>(i % 251);
  }
  sim_.copy(0, 0, {0, data_, 0, data_ + 1, kBytes - 1, true, "shift"});
  for (size_t i = 1; i < kBytes; ++i) {
    ASSERT_EQ(data_[i], (i - 1) % 251);
  }
}

TEST_F(LateCopyTest, ConsumerThatWaitsSeesTheBytes) {
  copy_in(sim_, side_, pinned_, data_, kBytes);
  order(sim_, side_, 0);
  run(sim_, 0, "consume", {reads(data_, kBytes)});
  EXPECT_TRUE(device_has(kFresh));
  EXPECT_EQ(sim_.num_races(), 0);
}

TEST_F(LateCopyTest, ConsumerThatDoesNotWaitSeesPoison) {
  copy_in(sim_, side_, pinned_, data_, kBytes);
  run(sim_, 0, "consume", {reads(data_, kBytes)});
  EXPECT_TRUE(device_has(kPoison));
  EXPECT_EQ(sim_.num_races(), 1);
}

TEST_F(LateCopyTest, PoisonReadsAsNotANumber) {
  copy_in(sim_, side_, pinned_, data_, kBytes);
  float as_float = 0;
  double as_double = 0;
  std::memcpy(&as_float, data_, sizeof as_float);
  std::memcpy(&as_double, data_, sizeof as_double);
  EXPECT_TRUE(std::isnan(as_float));
  EXPECT_TRUE(std::isnan(as_double));
}

TEST_F(LateCopyTest, WaitAloneDoesNotMoveBytesButWorkBehindItDoes) {
  copy_in(sim_, side_, pinned_, data_, kBytes);
  order(sim_, side_, 0);
  EXPECT_TRUE(device_has(kPoison));
  run(sim_, 0, "anything");
  EXPECT_TRUE(device_has(kFresh));
}

TEST_F(LateCopyTest, SameStreamSeesItsOwnCopies) {
  copy_in(sim_, side_, pinned_, data_, kBytes);
  run(sim_, side_, "consume", {reads(data_, kBytes)});
  EXPECT_TRUE(device_has(kFresh));
}

TEST_F(LateCopyTest, WaitForAnEventRecordedBeforeTheCopyMovesNothing) {
  const auto early = sim_.record(0, side_);
  copy_in(sim_, side_, pinned_, data_, kBytes);
  sim_.wait(0, 0, *early);
  run(sim_, 0, "consume", {reads(data_, kBytes)});
  EXPECT_TRUE(device_has(kPoison));
}

TEST_F(LateCopyTest, ChainOfCopiesArrivesInOrder) {
  auto* other = static_cast<unsigned char*>(sim_.allocate_pinned(kBytes));
  copy_in(sim_, side_, pinned_, data_, kBytes);
  copy_out(sim_, side_, data_, other, kBytes);
  sim_.synchronize_stream(0, side_);
  EXPECT_TRUE(is_filled(other, kBytes, kFresh));
}

TEST_F(LateCopyTest, CopiesBehindOneAnotherStayLateTogether) {
  auto* other = static_cast<unsigned char*>(sim_.allocate(0, 0, kBytes));
  copy_in(sim_, side_, pinned_, data_, kBytes);
  sim_.record(0, side_);
  copy_in(sim_, side_, pinned_, other, kBytes);
  EXPECT_TRUE(device_has(kPoison)) << "neither an event nor a copy behind it waits for its bytes";
}

TEST_F(LateCopyTest, FreeOfAPinnedBufferFinishesWhatItsCopiesBuildOn) {
  copy_in(sim_, side_, pinned_, data_, kBytes);
  auto* other = static_cast<unsigned char*>(sim_.allocate_pinned(kBytes));
  auto* last = static_cast<unsigned char*>(sim_.allocate(0, side_, kBytes));
  copy_out(sim_, side_, data_, other, kBytes);
  copy_in(sim_, side_, other, last, kBytes);
  sim_.free_pinned(other);
  EXPECT_TRUE(is_filled(last, kBytes, kFresh));
}

TEST_F(LateCopyTest, SourceOverwrittenWithoutAWaitShowsInTheDestination) {
  copy_out(sim_, side_, data_, pinned_, kBytes);
  sim_.begin_op(0, 0, "overwrite", {});
  std::memset(data_, 0x33, kBytes);
  sim_.end_op(0, 0, "overwrite", {}, {});
  sim_.synchronize_stream(0, side_);
  EXPECT_TRUE(host_has(0x33));
}

TEST_F(LateCopyTest, SourceFreedTooEarlyIsPoisoned) {
  copy_out(sim_, side_, data_, pinned_, kBytes);
  sim_.free(data_);
  sim_.synchronize_stream(0, side_);
  EXPECT_TRUE(host_has(kPoison));
}

TEST_F(LateCopyTest, SourceFreedBehindAWaitArrives) {
  copy_out(sim_, side_, data_, pinned_, kBytes);
  order(sim_, side_, 0);
  sim_.free(data_);
  sim_.synchronize_stream(0, side_);
  EXPECT_TRUE(host_has(kOld));
  EXPECT_TRUE(device_has(kPoison)) << "freed memory is poisoned";
}

TEST_F(LateCopyTest, HostThatDoesNotWaitSeesPoison) {
  copy_out(sim_, side_, data_, pinned_, kBytes);
  EXPECT_TRUE(host_has(kPoison));
  const auto event = sim_.record(0, side_);
  EXPECT_FALSE(sim_.is_done(*event));
  EXPECT_TRUE(host_has(kPoison));
  sim_.advance_host(0, 10'000'000);
  EXPECT_TRUE(sim_.is_done(*event));
  EXPECT_TRUE(host_has(kOld));
}

TEST_F(LateCopyTest, EveryWayForTheHostToWaitMovesTheBytes) {
  copy_out(sim_, side_, data_, pinned_, kBytes);
  sim_.synchronize(*sim_.record(0, side_));
  EXPECT_TRUE(host_has(kOld));
  std::memset(pinned_, 0, kBytes);
  copy_out(sim_, side_, data_, pinned_, kBytes);
  sim_.synchronize_device(0);
  EXPECT_TRUE(host_has(kOld));
}

TEST_F(LateCopyTest, BlockingCopyMovesAtOnce) {
  copy_in(sim_, side_, pinned_, data_, kBytes, /*non_blocking=*/false);
  EXPECT_TRUE(device_has(kFresh));
}

TEST_F(LateCopyTest, CopyFromPageableMemoryMovesAtOnce) {
  const std::vector<unsigned char> pageable(kBytes, kFresh);
  copy_in(sim_, side_, pageable.data(), data_, kBytes, /*non_blocking=*/true);
  EXPECT_TRUE(device_has(kFresh));
}

TEST_F(LateCopyTest, FreeOfAPinnedBufferFinishesItsCopies) {
  copy_in(sim_, side_, pinned_, data_, kBytes);
  sim_.free_pinned(pinned_);
  sim_.synchronize_stream(0, side_);
  EXPECT_TRUE(device_has(kFresh));
}

TEST_F(LateCopyTest, HeldBlockIsPoisonedOnlyWhenItIsReleased) {
  copy_out(sim_, side_, data_, pinned_, kBytes);
  sim_.record_stream(data_, 0, side_);
  sim_.free(data_);
  EXPECT_TRUE(device_has(kOld));
  sim_.advance_host(0, 10'000'000);
  sim_.allocate(0, side_, kBytes);  // releases what is held
  EXPECT_TRUE(device_has(kPoison));
  EXPECT_TRUE(host_has(kOld));
}

}  // namespace
}  // namespace swapline::sim
