// Which pairs of accesses race, byte range by byte range.
#include "sim/core/access_log.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

using Conflict = AccessLog::Conflict;

class AccessLogTest : public ::testing::Test {
 protected:
  static constexpr Actor kA = 1;
  static constexpr Actor kB = 2;
  static constexpr Actor kC = 3;

  std::vector<Conflict> access(
      Actor actor, const std::string& op, uintptr_t begin, uintptr_t end, bool is_write) {
    VectorClock& clock = clocks_[actor];
    std::vector<Conflict> conflicts;
    const uint64_t tick = clock.advance(actor);
    log_.note({actor, tick, &clock, op}, {begin, end, is_write}, conflicts);
    return conflicts;
  }
  std::vector<Conflict> read(Actor actor, uintptr_t begin, uintptr_t end) {
    return access(actor, "read", begin, end, false);
  }
  std::vector<Conflict> write(Actor actor, uintptr_t begin, uintptr_t end) {
    return access(actor, "write", begin, end, true);
  }
  // From here on `later` comes after what `earlier` has done.
  void order(Actor earlier, Actor later) { clocks_[later].join(clocks_[earlier]); }

  AccessLog log_;
  VectorClock clocks_[4];
};

TEST_F(AccessLogTest, SameActorNeverRacesWithItself) {
  EXPECT_TRUE(write(kA, 0, 100).empty());
  EXPECT_TRUE(read(kA, 0, 100).empty());
  EXPECT_TRUE(write(kA, 50, 150).empty());
}

TEST_F(AccessLogTest, ReadsOfTheSameBytesDoNotConflict) {
  read(kA, 0, 100);
  EXPECT_TRUE(read(kB, 0, 100).empty());
}

TEST_F(AccessLogTest, ReadAfterUnorderedWriteConflicts) {
  access(kA, "produce", 0, 100, true);
  const auto found = read(kB, 0, 100);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].first_op, "produce");
  EXPECT_EQ(found[0].first_actor, kA);
  EXPECT_TRUE(found[0].first_is_write);
}

TEST_F(AccessLogTest, WriteAfterUnorderedReadConflicts) {
  access(kA, "consume", 0, 100, false);
  const auto found = write(kB, 0, 100);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].first_op, "consume");
  EXPECT_FALSE(found[0].first_is_write);
}

TEST_F(AccessLogTest, OrderedAccessesDoNotConflict) {
  write(kA, 0, 100);
  order(kA, kB);
  EXPECT_TRUE(read(kB, 0, 100).empty());
  order(kB, kA);
  EXPECT_TRUE(write(kA, 0, 100).empty());
}

TEST_F(AccessLogTest, OrderIsTransitive) {
  write(kA, 0, 100);
  order(kA, kB);
  order(kB, kC);
  EXPECT_TRUE(write(kC, 0, 100).empty());
}

TEST_F(AccessLogTest, OrderCoversOnlyWhatWasDoneBeforeIt) {
  write(kA, 0, 100);
  order(kA, kB);
  write(kA, 0, 100);
  EXPECT_EQ(read(kB, 0, 100).size(), 1U);
}

TEST_F(AccessLogTest, PartialOverlapNamesTheSharedBytes) {
  write(kA, 100, 200);
  const auto found = read(kB, 150, 300);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].begin, 150U);
  EXPECT_EQ(found[0].end, 200U);
}

TEST_F(AccessLogTest, OverlapFromBelowNamesTheSharedBytes) {
  write(kA, 100, 200);
  const auto found = write(kB, 50, 101);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].begin, 100U);
  EXPECT_EQ(found[0].end, 101U);
}

TEST_F(AccessLogTest, TouchingRangesDoNotOverlap) {
  write(kA, 100, 200);
  EXPECT_TRUE(write(kB, 200, 300).empty());
  EXPECT_TRUE(write(kB, 0, 100).empty());
}

TEST_F(AccessLogTest, EmptyRangeIsNoAccess) {
  write(kA, 0, 100);
  EXPECT_TRUE(write(kB, 50, 50).empty());
}

TEST_F(AccessLogTest, WriteOverSeveralRangesConflictsWithEach) {
  write(kA, 0, 10);
  write(kA, 20, 30);
  write(kC, 30, 40);
  const auto found = write(kB, 5, 35);
  EXPECT_EQ(found.size(), 3U);
}

TEST_F(AccessLogTest, WriteJoinsTheRangesItCovers) {
  write(kA, 0, 10);
  write(kA, 20, 30);
  write(kA, 0, 40);
  const auto found = read(kB, 0, 40);
  ASSERT_EQ(found.size(), 1U) << "one range is left";
  EXPECT_EQ(found[0].end, 40U);
}

TEST_F(AccessLogTest, BytesAroundANewWriteKeepTheirOwnHistory) {
  access(kA, "old", 0, 100, true);
  order(kA, kB);
  access(kB, "new", 40, 60, true);
  order(kB, kC);
  EXPECT_TRUE(read(kC, 40, 60).empty());
  order(kC, kA);  // kA does not know of what comes next
  access(kB, "newer", 40, 60, true);
  EXPECT_TRUE(read(kA, 0, 40).empty());
  EXPECT_TRUE(read(kA, 60, 100).empty());
  const auto found = read(kA, 39, 41);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].first_op, "newer");
  EXPECT_EQ(found[0].begin, 40U);
}

TEST_F(AccessLogTest, WriteConflictsWithEveryUnorderedRead) {
  read(kA, 0, 100);
  read(kB, 0, 100);
  EXPECT_EQ(write(kC, 0, 100).size(), 2U);
}

TEST_F(AccessLogTest, ReadOrderedBehindAnotherStandsForBoth) {
  read(kA, 0, 100);
  order(kA, kB);
  read(kB, 0, 100);
  order(kB, kC);
  EXPECT_TRUE(write(kC, 0, 100).empty());
}

TEST_F(AccessLogTest, ForgottenBytesHaveNoHistory) {
  write(kA, 0, 100);
  log_.forget(25, 75);
  EXPECT_TRUE(write(kB, 25, 75).empty());
  EXPECT_EQ(read(kB, 0, 25).size(), 1U);
  EXPECT_EQ(read(kB, 75, 100).size(), 1U);
}

TEST_F(AccessLogTest, ForgetOfUnknownBytesDoesNothing) {
  log_.forget(0, 100);
  write(kA, 50, 60);
  log_.forget(0, 50);
  log_.forget(60, 70);
  EXPECT_EQ(read(kB, 50, 60).size(), 1U);
}

}  // namespace
}  // namespace swapline::sim
