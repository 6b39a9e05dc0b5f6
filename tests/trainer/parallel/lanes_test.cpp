// Rows and sums between lanes: the right bits on every lane, at the links' pace.
#include "trainer/parallel/lanes.h"

#include "tests/trainer/parallel/devices_test.h"

#include <utility>

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

using swapline::testing::same_bits;

// rows[from][to]: how many rows go from one lane to another, in the order of the lanes.
using RowCounts = std::vector<std::vector<int64_t>>;

RowRoute route_of(const RowCounts& rows) {
  RowRoute route;
  route.arriving.resize(rows.size());
  for (size_t from = 0; from < rows.size(); ++from) {
    std::vector<RowRun>& leaving = route.leaving.emplace_back();
    for (size_t to = 0; to < rows.size(); ++to) {
      leaving.push_back({to, rows[from][to]});
      route.arriving[to].push_back({from, rows[from][to]});
    }
  }
  return route;
}

Exchange start(const Lanes& lanes, std::vector<PerLane> matrices, const RowCounts& rows) {
  return lanes.exchange({Shipment{std::move(matrices), route_of(rows)}});
}

constexpr int64_t kMany = int64_t{1} << 20;  // elements whose copy takes 0.4 ms

class LanesTest : public DevicesTest {
 protected:
  // A tensor on each lane with the rows that it sends.
  PerLane rows_to_send(const RowCounts& rows, int64_t width, uint64_t seed) {
    PerLane tensors;
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      int64_t sum = 0;
      for (const int64_t count : rows[lane]) {
        sum += count;
      }
      tensors.push_back(random_on(lane, {sum, width}, seed + lane));
    }
    return tensors;
  }

  // What lane `to` should get, on the CPU.
  static at::Tensor expected_rows(const PerLane& sent, const RowCounts& rows, size_t to) {
    std::vector<at::Tensor> pieces;
    for (size_t from = 0; from < rows.size(); ++from) {
      int64_t begin = 0;
      for (size_t before = 0; before < to; ++before) {
        begin += rows[from][before];
      }
      pieces.push_back(sent[from].cpu().narrow(0, begin, rows[from][to]));
    }
    return at::cat(pieces);
  }

  void check_exchange(const RowCounts& rows) {
    const Lanes lanes(first_devices(rows.size()), "test");
    const std::vector<PerLane> sent = {rows_to_send(rows, 7, 1), rows_to_send(rows, 1, 50)};
    const std::vector<PerLane> arrived = start(lanes, sent, rows).wait().front();
    ASSERT_EQ(arrived.size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      for (size_t lane = 0; lane < rows.size(); ++lane) {
        EXPECT_EQ(arrived[i][lane].device(), device_at(lane).torch_device());
        EXPECT_TRUE(same_bits(arrived[i][lane], expected_rows(sent[i], rows, lane)))
            << "tensor " << i << " lane " << lane;
      }
    }
  }

  double add_up_microseconds(size_t num_lanes) {
    const Lanes lanes(first_devices(num_lanes), "test");
    PerLane tensors;
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      tensors.push_back(random_on(lane, {kMany}, lane));
    }
    lanes.add_up(tensors);  // the allocator's blocks are there from now on
    synchronize();
    const double begin = microseconds_at(0);
    lanes.add_up(tensors);
    return microseconds_at(0) - begin;
  }
};

TEST_F(LanesTest, EachLaneGetsItsRowsInTheOrderOfTheSenders) {
  check_exchange({{5}});
  check_exchange({{3, 3}, {3, 3}});
  check_exchange({{1, 8}, {5, 2}});
  check_exchange({{2, 2, 2, 2}, {2, 2, 2, 2}, {2, 2, 2, 2}, {2, 2, 2, 2}});
  check_exchange({{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 1, 2, 3}, {4, 5, 6, 7}});
}

TEST_F(LanesTest, LanesMayHaveNoRowsForOneAnother) {
  check_exchange({{0}});
  check_exchange({{0, 4}, {0, 0}});
  check_exchange({{0, 0}, {0, 0}});
  check_exchange({{0, 0, 3, 0}, {0, 0, 5, 0}, {0, 0, 1, 0}, {0, 0, 2, 0}});
  check_exchange({{0, 1, 0, 2}, {3, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 0}});
}

TEST_F(LanesTest, WhatArrivesIsInOrderWithTheComputeAroundIt) {
  // The rows are written right before, and again right behind; each lane reads at once.
  const RowCounts rows = {{kMany / 2, kMany / 2}, {kMany / 2, kMany / 2}};
  const Lanes lanes(first_devices(2), "test");
  PerLane sent = rows_to_send(rows, 1, 1);
  for (at::Tensor& tensor : sent) {
    tensor.mul_(2);
  }
  const at::Tensor expected = expected_rows(sent, rows, 1);
  Exchange exchange = start(lanes, {sent}, rows);
  const std::vector<PerLane> arrived = exchange.wait().front();
  for (at::Tensor& tensor : sent) {
    tensor.zero_();
  }
  EXPECT_TRUE(same_bits(arrived[0][1] + 0, expected));
}

TEST_F(LanesTest, WritingWhatIsUnderWayIsARace) {
  expect_races();
  const RowCounts rows = {{0, kMany}, {kMany, 0}};
  const Lanes lanes(first_devices(2), "test");
  const PerLane sent = rows_to_send(rows, 1, 1);
  Exchange exchange = start(lanes, {sent}, rows);
  EXPECT_EQ(sim().num_races(), 0);
  sent[0].zero_();
  EXPECT_GT(sim().num_races(), 0);
  exchange.wait();
}

TEST_F(LanesTest, BothDirectionsOfAPairGoAtOnce) {
  const RowCounts rows = {{0, kMany}, {kMany, 0}};
  const Lanes lanes(first_devices(2), "test");
  const PerLane sent = rows_to_send(rows, 1, 1);
  start(lanes, {sent}, rows).wait();  // the allocator's blocks are there from now on
  synchronize();
  const double begin = microseconds_at(0);
  start(lanes, {sent}, rows).wait();
  const double copy = copy_microseconds(4.0 * kMany);
  for (const size_t lane : {0, 1}) {
    EXPECT_GE(microseconds_at(lane) - begin, copy);
    EXPECT_LE(microseconds_at(lane) - begin, 1.1 * copy) << lane;
  }
}

TEST_F(LanesTest, FourLanesKeepAllTheirLinksBusy) {
  const int64_t part = kMany;
  const RowCounts rows(4, std::vector<int64_t>(4, part));
  const Lanes lanes(first_devices(4), "test");
  const PerLane sent = rows_to_send(rows, 1, 1);
  start(lanes, {sent}, rows).wait();
  synchronize();
  const double begin = microseconds_at(0);
  start(lanes, {sent}, rows).wait();
  for (size_t lane = 0; lane < 4; ++lane) {
    EXPECT_LE(microseconds_at(lane) - begin, 1.25 * 3 * copy_microseconds(4.0 * part)) << lane;
  }
}

TEST_F(LanesTest, ComputeGoesOnWhileRowsAreUnderWay) {
  const RowCounts rows = {{0, kMany}, {kMany, 0}};
  const Lanes lanes(first_devices(2), "test");
  const PerLane sent = rows_to_send(rows, 1, 1);
  start(lanes, {sent}, rows).wait();
  swapline::testing::keep_busy(200);
  synchronize();
  double begin = microseconds_at(0);
  swapline::testing::keep_busy(200);
  const double compute = microseconds_at(0) - begin;
  ASSERT_GT(compute, copy_microseconds(4.0 * kMany));
  synchronize();
  begin = microseconds_at(0);
  Exchange exchange = start(lanes, {sent}, rows);
  swapline::testing::keep_busy(200);
  exchange.wait();
  EXPECT_LE(microseconds_at(0) - begin, 1.05 * compute + 30);
}

TEST_F(LanesTest, SumsHaveTheBitsOfTheLanesOrderEverywhere) {
  for (const size_t num_lanes : {1, 2, 3, 4}) {
    const Lanes lanes(first_devices(num_lanes), "test");
    for (const int64_t numel : {0, 1, 2, 3, 4, 5, 7, 1000, 1001, 1003}) {
      PerLane tensors;
      at::Tensor expected;
      for (size_t lane = 0; lane < num_lanes; ++lane) {
        tensors.push_back(random_on(lane, {numel}, 10 * static_cast<uint64_t>(numel) + lane));
        const at::Tensor here = tensors.back().cpu();
        expected = lane == 0 ? here : expected + here;
      }
      lanes.add_up(tensors);
      for (size_t lane = 0; lane < num_lanes; ++lane) {
        EXPECT_TRUE(same_bits(tensors[lane], expected))
            << num_lanes << " lanes, " << numel << " elements, on " << lane;
      }
    }
  }
}

TEST_F(LanesTest, SumsOfMatricesAndOtherDtypes) {
  const Lanes lanes(first_devices(2), "test");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const PerLane tensors = {random_on(0, {5, 3}, 1).to(dtype), random_on(1, {5, 3}, 2).to(dtype)};
    const at::Tensor expected = tensors[0].cpu() + tensors[1].cpu();
    lanes.add_up(tensors);
    EXPECT_TRUE(same_bits(tensors[0], expected)) << dtype;
    EXPECT_TRUE(same_bits(tensors[1], expected)) << dtype;
  }
}

TEST_F(LanesTest, ASumMovesWhatARingMoves) {
  const sim::DeviceSpec& spec = sim().options().spec;
  const double whole = 4e6 * kMany / spec.peer_bytes_per_s;
  const double compute = 4e6 * kMany * 6 / spec.memory_bytes_per_s;  // the additions' traffic
  for (const size_t num_lanes : {2, 4}) {
    const auto n = static_cast<double>(num_lanes);
    const double moved = 2 * (n - 1) / n * whole;
    const double found = add_up_microseconds(num_lanes);
    EXPECT_GE(found, moved) << num_lanes;
    EXPECT_LE(found, 1.1 * moved + compute) << num_lanes;
  }
}

TEST_F(LanesTest, SumsUnderWayTogetherHaveTheBitsOfOneAfterTheOther) {
  const Lanes lanes(first_devices(3), "test");
  std::vector<PerLane> tensors;
  std::vector<at::Tensor> expected;
  for (uint64_t i = 0; i < 3; ++i) {
    tensors.push_back(
        {random_on(0, {100}, i), random_on(1, {100}, i + 10), random_on(2, {100}, i)});
    expected.push_back(tensors[i][0].cpu() + tensors[i][1].cpu() + tensors[i][2].cpu());
  }
  std::vector<Sum> sums;
  for (const PerLane& tensor : tensors) {
    sums.push_back(lanes.start_sum(tensor));
  }
  for (Sum& sum : sums) {
    sum.add();
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i].wait();
    for (const at::Tensor& found : tensors[i]) {
      EXPECT_TRUE(same_bits(found, expected[i])) << i;
    }
  }
}

TEST_F(LanesTest, ASumThatNobodyWaitsForGoesAway) {
  const Lanes lanes(first_devices(2), "test");
  for (const bool adds : {false, true}) {
    Sum sum = lanes.start_sum({random_on(0, {64}, 1), random_on(1, {64}, 2)});
    if (adds) {
      sum.add();
    }
  }
  EXPECT_EQ(sim().live_bytes(), 0U);
  // Others take the memory: behind the copies, or it is a race.
  const at::Tensor other = random_on(0, {64}, 3);
  EXPECT_TRUE(same_bits(other + 0, other));
}

TEST_F(LanesTest, NothingIsLeftBehind) {
  const Lanes lanes(first_devices(2), "test");
  const RowCounts rows = {{3, 4}, {5, 6}};
  {
    std::vector<PerLane> sent = {rows_to_send(rows, 8, 1)};
    const auto of_sent = sim().live_bytes();
    Exchange exchange = start(lanes, sent, rows);
    sent.clear();
    EXPECT_GT(sim().live_bytes(), of_sent);  // both are there while they are under way
    const std::vector<PerLane> arrived = exchange.wait().front();
    EXPECT_EQ(sim().live_bytes(), of_sent);  // what was sent is gone
    lanes.add_up({arrived[0][0].narrow(0, 0, 8).contiguous(), arrived[0][1].narrow(0, 0, 8)});
  }
  EXPECT_EQ(sim().live_bytes(), 0U);
}

TEST_F(LanesTest, AnExchangeThatNobodyWaitsForGoesAway) {
  const Lanes lanes(first_devices(2), "test");
  const RowCounts rows = {{3, 4}, {5, 6}};
  {
    const Exchange exchange = start(lanes, {rows_to_send(rows, 8, 1)}, rows);
  }
  EXPECT_EQ(sim().live_bytes(), 0U);
  // Others take the memory: behind the copies, or it is a race.
  const PerLane others = rows_to_send(rows, 8, 2);
  EXPECT_TRUE(same_bits(others[0] + 0, others[0]));
}

}  // namespace
}  // namespace swapline::trainer
