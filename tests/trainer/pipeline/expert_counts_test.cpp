// Counts of rows per expert on their way to the host.
#include "trainer/pipeline/expert_counts.h"

#include "tests/trainer/parallel/devices_test.h"

#include <memory>
#include <optional>

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

class ExpertCountsTest : public DevicesTest {
 protected:
  void SetUp() override {
    DevicesTest::SetUp();
    pool_ = std::make_unique<HostPool>(device_at(0).torch_device());
    pool_->reserve(512);  // its memory is there from now on
    copies_.emplace(device_at(0), *pool_);
  }
  void TearDown() override {
    copies_.reset();
    pool_.reset();
    DevicesTest::TearDown();
  }

  // So that counts which the host has not waited for are not there.
  DeviceConfig device_config() const override {
    DeviceConfig config = DevicesTest::device_config();
    config.late_copies = true;
    return config;
  }
  at::Tensor on_device(const std::vector<int64_t>& ends) {
    return at::tensor(ends, at::kInt).to(device_at(0).torch_device());
  }
  int64_t host_nanos() { return sim().host_time(0); }

  std::unique_ptr<HostPool> pool_;
  std::optional<CountCopies> copies_;
};

TEST_F(ExpertCountsTest, AreTheDifferencesOfTheEnds) {
  EXPECT_EQ(copies_->start(on_device({3, 3, 7, 12})).read(), (std::vector<int64_t>{3, 0, 4, 5}));
}

TEST_F(ExpertCountsTest, SeveralMayBeUnderWay) {
  // Each made right before its copy starts.
  CountsCopy first = copies_->start(on_device({1, 2}) * 2);
  CountsCopy second = copies_->start(on_device({1, 2}) * 3);
  EXPECT_EQ(second.read(), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(first.read(), (std::vector<int64_t>{2, 2}));
}

TEST_F(ExpertCountsTest, TheHostWaitsForWhatCameBeforeThemAndNothingElse) {
  const at::Tensor ends = on_device({1, 2});
  synchronize();
  CountsCopy copy = copies_->start(ends);
  const at::Tensor many = at::ones({1 << 20}, ends.options().dtype(at::kFloat));
  for (int i = 0; i < 20; ++i) {
    many.add_(1);
  }
  const sim::Nanos compute_done = sim().stream_time(0, 0);
  copy.read();
  EXPECT_LT(host_nanos(), compute_done);
}

TEST_F(ExpertCountsTest, TheHostDoesNotWaitWhenItComesLater) {
  CountsCopy copy = copies_->start(on_device({1, 2}));
  sim().advance_host(0, 1000 * 1000);
  const int64_t before = host_nanos();
  copy.read();
  EXPECT_EQ(host_nanos(), before);
}

TEST_F(ExpertCountsTest, WritingEndsUnderWayIsARace) {
  expect_races();
  const at::Tensor ends = on_device({1, 2});
  CountsCopy copy = copies_->start(ends);
  EXPECT_EQ(sim().num_races(), 0);
  ends.zero_();
  EXPECT_GT(sim().num_races(), 0);
}

TEST_F(ExpertCountsTest, WhatNobodyReadsGoesAwayBehindItsCopy) {
  const size_t before = sim().live_bytes();
  {
    const CountsCopy copy = copies_->start(on_device({1, 2}) * 2);
  }
  EXPECT_EQ(sim().live_bytes(), before);
  // Others take the memory: behind the copy, or it is a race.
  EXPECT_EQ((on_device({5, 6}) * 2).cpu()[1].item<int64_t>(), 12);
}

}  // namespace
}  // namespace swapline::trainer
