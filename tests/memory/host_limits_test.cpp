// Limits are read from a made-up root folder.
#include "swapline/memory/host_limits.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace swapline {
namespace {

namespace fs = std::filesystem;

class HostLimitsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "swapline_limits_XXXXXX").string();
    root_ = mkdtemp(name.data());
    write("proc/meminfo", "MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:  2000 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  HostLimit tightest(bool locks_pages = false) const {
    return tightest_host_limit(locks_pages, root_.string()).value();
  }

  fs::path root_;
};

TEST_F(HostLimitsTest, MemAvailableIsReadInBytes) {
  EXPECT_EQ(tightest().free_bytes, 2000U * 1024);
  EXPECT_EQ(tightest().name, "MemAvailable of /proc/meminfo");
}

TEST_F(HostLimitsTest, CgroupV2LimitCountsUsageWithoutInactiveFilePages) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "1000000\n");
  write("sys/fs/cgroup/job/step/memory.current", "700000\n");
  write("sys/fs/cgroup/job/step/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(tightest().free_bytes, 400000U);
  EXPECT_EQ(tightest().name, "the cgroup's memory.max");
}

TEST_F(HostLimitsTest, CgroupLimitOfAParentCounts) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "max\n");
  write("sys/fs/cgroup/job/step/memory.current", "1\n");
  write("sys/fs/cgroup/job/memory.max", "5000\n");
  write("sys/fs/cgroup/job/memory.current", "1000\n");
  EXPECT_EQ(tightest().free_bytes, 4000U);
}

TEST_F(HostLimitsTest, CgroupV1LimitIsRead) {
  write("proc/self/cgroup", "7:cpu:/a\n4:memory:/box\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "9000\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "8000\n");
  write("sys/fs/cgroup/memory/box/memory.stat", "total_inactive_file 500\n");
  EXPECT_EQ(tightest().free_bytes, 1500U);
  EXPECT_EQ(tightest().name, "the cgroup's memory.limit_in_bytes");
}

TEST_F(HostLimitsTest, UsageAboveTheLimitLeavesNothing) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "10\n");
  write("sys/fs/cgroup/memory.current", "20\n");
  EXPECT_EQ(tightest().free_bytes, 0U);
}

TEST_F(HostLimitsTest, NothingToReadIsNoLimit) {
  EXPECT_FALSE(tightest_host_limit(false, (root_ / "nowhere").string()).has_value());
}

TEST_F(HostLimitsTest, TheRealSystemAnswers) {
  const auto limit = tightest_host_limit(false);
  ASSERT_TRUE(limit.has_value());
  EXPECT_GT(limit->free_bytes, 0U);
}

}  // namespace
}  // namespace swapline
