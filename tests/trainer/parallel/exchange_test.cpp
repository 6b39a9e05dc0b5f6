// Rows on their way to their experts and back: in their places, in few launches.
#include "trainer/parallel/exchange.h"

#include "tests/trainer/parallel/devices_test.h"
#include "trainer/parallel/lanes.h"

#include <numeric>
#include <utility>

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

using swapline::testing::same_bits;

// By lane and expert.
using Counts = std::vector<std::vector<int64_t>>;

const Counts kTwoLanes = {{3, 0, 5, 2}, {1, 4, 0, 6}};
const Counts kFourLanes = {{1, 2, 3, 4, 5, 6, 7, 8},
                           {0, 0, 0, 0, 0, 0, 0, 9},
                           {2, 0, 2, 0, 2, 0, 2, 0},
                           {4, 3, 2, 1, 0, 0, 1, 1}};

class ExchangeTest : public DevicesTest {
 protected:
  PerLane rows_by_expert(const Counts& counts,
                         int64_t width,
                         uint64_t seed,
                         at::ScalarType dtype = at::kFloat) {
    PerLane matrices;
    for (size_t lane = 0; lane < counts.size(); ++lane) {
      const int64_t sum = std::accumulate(counts[lane].begin(), counts[lane].end(), int64_t{0});
      matrices.push_back(random_on(lane, {sum, width}, seed + lane).to(dtype));
    }
    return matrices;
  }

  // What lane `to` should get, on the CPU.
  static at::Tensor at_experts(const PerLane& sent, const Counts& counts, size_t to) {
    const size_t num_local = counts[0].size() / counts.size();
    std::vector<at::Tensor> pieces;
    for (size_t expert = to * num_local; expert < (to + 1) * num_local; ++expert) {
      for (size_t from = 0; from < counts.size(); ++from) {
        const auto begin = counts[from].begin();
        const auto first = std::accumulate(begin, begin + static_cast<long>(expert), int64_t{0});
        pieces.push_back(sent[from].cpu().narrow(0, first, counts[from][expert]));
      }
    }
    return at::cat(pieces);
  }

  // To the experts and back again.
  void check_both_ways(const Counts& counts, const std::vector<PerLane>& sent) {
    const Lanes lanes(first_devices(counts.size()), "test");
    const RowRoute route = route_to_experts(counts);
    const std::vector<PerLane> there = lanes.exchange({{sent, route}}).wait().front();
    const std::vector<PerLane> back = lanes.exchange({{there, route.reversed()}}).wait().front();
    ASSERT_EQ(there.size(), sent.size());
    ASSERT_EQ(back.size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i) {
      for (size_t lane = 0; lane < counts.size(); ++lane) {
        SCOPED_TRACE("matrix " + std::to_string(i) + " lane " + std::to_string(lane));
        EXPECT_EQ(there[i][lane].device(), device_at(lane).torch_device());
        EXPECT_TRUE(same_bits(there[i][lane], at_experts(sent[i], counts, lane)));
        EXPECT_TRUE(same_bits(back[i][lane], sent[i][lane]));
      }
    }
  }

  // Of the first device's host.
  template <typename Work>
  int64_t num_launches(const Work& work) {
    work();  // memory is there from now on
    synchronize();
    const sim::Nanos begin = sim().host_time(0);
    work();
    return (sim().host_time(0) - begin) / sim().options().spec.host_op_time;
  }
};

TEST_F(ExchangeTest, SmallMatricesGoToTheirExpertsAndBack) {
  for (const Counts& counts : {Counts{{2, 0, 5}}, kTwoLanes, kFourLanes}) {
    SCOPED_TRACE(counts.size());
    check_both_ways(counts, {rows_by_expert(counts, 8, 1)});
    check_both_ways(
        counts,
        {rows_by_expert(counts, 1, 2), rows_by_expert(counts, 7, 3), rows_by_expert(counts, 1, 4)});
  }
}

TEST_F(ExchangeTest, LargeMatricesToo) {
  for (const Counts& counts : {kTwoLanes, kFourLanes}) {
    SCOPED_TRACE(counts.size());
    check_both_ways(counts,
                    {rows_by_expert(counts, int64_t{1} << 18, 1), rows_by_expert(counts, 1, 2)});
  }
}

TEST_F(ExchangeTest, MatricesOfSeveralDtypesToo) {
  check_both_ways(kTwoLanes,
                  {rows_by_expert(kTwoLanes, 8, 1),
                   rows_by_expert(kTwoLanes, 5, 2, at::kBFloat16),
                   rows_by_expert(kTwoLanes, 3, 3, at::kLong)});
}

TEST_F(ExchangeTest, LanesMayHaveNothingForEachOther) {
  const Counts only_own = {{2, 3, 0, 0}, {0, 0, 1, 1}};
  const Counts only_others = {{0, 0, 4, 1}, {0, 2, 0, 0}};
  const Counts only_one = {{0, 0, 0, 0}, {0, 0, 7, 0}};
  const Counts none = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  for (const Counts& counts : {only_own, only_others, only_one, none}) {
    check_both_ways(counts, {rows_by_expert(counts, 4, 1), rows_by_expert(counts, 1, 2)});
  }
}

// Five matrices as those of a forward and of a backward.
TEST_F(ExchangeTest, ShipmentsThatLeaveAtOnceArriveAsAloneInHalfTheLaunches) {
  const Counts others = {{0, 2, 1, 1}, {7, 0, 3, 0}};
  const Lanes lanes(first_devices(2), "test");
  const std::vector<PerLane> forward = {rows_by_expert(kTwoLanes, 16, 1),
                                        rows_by_expert(kTwoLanes, 1, 2)};
  const std::vector<PerLane> backward = {
      rows_by_expert(others, 16, 3), rows_by_expert(others, 16, 4), rows_by_expert(others, 1, 5)};
  for (const bool there : {true, false}) {
    SCOPED_TRACE(there);
    // The way back takes what lies by expert, as it does anyway where lanes have as many rows.
    const auto route = [&](const Counts& counts) {
      const RowRoute to_experts = route_to_experts(counts);
      return there ? to_experts : to_experts.reversed();
    };
    const auto shipment = [&](const std::vector<PerLane>& sent, const Counts& counts) {
      return Shipment{
          there ? sent : lanes.exchange({{sent, route_to_experts(counts)}}).wait().front(),
          route(counts)};
    };
    const Shipment first = shipment(forward, kTwoLanes);
    const Shipment second = shipment(backward, others);
    const std::vector<PerLane> first_alone = lanes.exchange({first}).wait().front();
    const std::vector<PerLane> second_alone = lanes.exchange({second}).wait().front();
    const auto together = lanes.exchange({first, second}).wait();
    for (size_t lane : {0, 1}) {
      for (size_t i = 0; i < forward.size(); ++i) {
        EXPECT_TRUE(same_bits(together[0][i][lane], first_alone[i][lane]));
      }
      for (size_t i = 0; i < backward.size(); ++i) {
        EXPECT_TRUE(same_bits(together[1][i][lane], second_alone[i][lane]));
      }
    }
    // To gather, to copy, to put in place.
    EXPECT_EQ(num_launches([&] { lanes.exchange({first, second}).wait(); }), 3);
    EXPECT_EQ(num_launches([&] {
                lanes.exchange({first}).wait();
                lanes.exchange({second}).wait();
              }),
              6);
  }
}

}  // namespace
}  // namespace swapline::trainer
