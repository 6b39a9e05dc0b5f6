// Exchanges with other machines: ordered when they are begun, timed when they are ended.
#include "tests/sim/core/machine.h"

#include <string>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

constexpr size_t kBytes = 4096;

class ExchangeTest : public ::testing::Test {
 protected:
  ExchangeTest() : comm_(sim_.new_stream(0)), data_(sim_.allocate(0, 0, kBytes)) {}

  std::shared_ptr<EventState> begin(bool is_write) {
    const std::vector<Access> accesses{access(data_, kBytes, is_write)};
    return sim_.begin_exchange(0, comm_, "all_reduce", accesses);
  }

  Simulator sim_{[] {
    auto options = tiny_machine();
    options.trace = true;
    return options;
  }()};
  StreamId comm_;
  void* data_;
};

TEST_F(ExchangeTest, IsReadyWhenItsStreamAndTheHostAre) {
  run(sim_, 0, "produce", {writes(data_, kBytes)});
  order(sim_, 0, comm_);
  const Nanos produced = sim_.stream_time(0, 0);
  const auto event = begin(true);
  EXPECT_EQ(Simulator::time_of(*event), std::max(produced, sim_.host_time(0)));
  sim_.advance_host(0, 1'000'000);
  const auto late = begin(true);
  EXPECT_EQ(Simulator::time_of(*late), sim_.host_time(0));
}

TEST_F(ExchangeTest, EndsWhenTheOthersSaySo) {
  const auto event = begin(true);
  sim_.end_exchange(*event, comm_, "all_reduce", kBytes, 70'000, 90'000);
  EXPECT_EQ(Simulator::time_of(*event), 90'000);
  EXPECT_EQ(sim_.stream_time(0, comm_), 90'000);
  EXPECT_FALSE(sim_.is_done(*event));
  sim_.wait(0, 0, *event);
  EXPECT_EQ(sim_.stream_time(0, 0), 90'000);
  sim_.synchronize(*event);
  EXPECT_TRUE(sim_.is_done(*event));
  EXPECT_EQ(sim_.counters(0).num_exchanges, 1);
  EXPECT_EQ(sim_.counters(0).bytes_exchanged, static_cast<int64_t>(kBytes));
  EXPECT_EQ(sim_.counters(0).num_ops, 0);
  EXPECT_NE(sim_.trace_json().find("\"name\":\"all_reduce\",\"ts\":70.000,\"dur\":20.000"),
            std::string::npos);
}

TEST_F(ExchangeTest, UseBeforeItsEventIsARace) {
  const auto event = begin(true);
  run(sim_, 0, "too early", {reads(data_, kBytes)});
  ASSERT_EQ(sim_.num_races(), 1);
  EXPECT_EQ(sim_.races()[0].first.op, "all_reduce");
  EXPECT_EQ(sim_.races()[0].second.op, "too early");
}

TEST_F(ExchangeTest, UseBehindItsEventIsClean) {
  const auto event = begin(true);
  sim_.end_exchange(*event, comm_, "all_reduce", kBytes, 0, 10);
  sim_.wait(0, 0, *event);
  run(sim_, 0, "in time", {writes(data_, kBytes)});
  EXPECT_EQ(sim_.num_races(), 0);
}

TEST_F(ExchangeTest, AnEventKnowsNothingOfLaterExchangesOfItsStream) {
  const auto first = begin(false);
  const auto second = begin(true);
  sim_.end_exchange(*first, comm_, "all_reduce", kBytes, 0, 10);
  sim_.end_exchange(*second, comm_, "all_reduce", kBytes, 10, 20);
  sim_.wait(0, 0, *first);
  run(sim_, 0, "too early", {reads(data_, kBytes)});
  EXPECT_EQ(sim_.num_races(), 1);
}

TEST_F(ExchangeTest, DemandsTheLateCopiesBeforeIt) {
  auto options = tiny_machine();
  options.late_copies = true;
  Simulator sim(options);
  void* device = sim.allocate(0, 0, kBytes);
  auto* pinned = static_cast<char*>(sim.allocate_pinned(kBytes));
  std::memset(pinned, 7, kBytes);
  copy_in(sim, 0, pinned, device, kBytes);
  EXPECT_FALSE(is_filled(device, kBytes, 7));
  const StreamId comm = sim.new_stream(0);
  order(sim, 0, comm);
  sim.begin_exchange(0, comm, "send", std::vector<Access>{reads(device, kBytes)});
  EXPECT_TRUE(is_filled(device, kBytes, 7));
}

}  // namespace
}  // namespace swapline::sim
