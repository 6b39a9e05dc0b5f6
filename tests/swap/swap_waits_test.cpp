// Each wait of the swap core taken away in turn: the race checker reports it, eager copies and
// late.
#include "tests/support/drop_wait.h"
#include "tests/support/sim_test.h"
#include "tests/support/swap_scenario.h"

#include <memory>
#include <string>
#include <tuple>

namespace swapline {
namespace {

using testing::DropWait;

class SwapWaitsTest : public testing::SimTest,
                      public ::testing::WithParamInterface<std::tuple<Wait, bool>> {};

TEST_P(SwapWaitsTest, LeavingItOutIsFoundAsARace) {
  const auto [dropped, late] = GetParam();
  use_machine({.late_copies = late});
  const auto order = std::make_shared<DropWait>(dropped);
  testing::swap_back_and_forth(sim::device(), order);
  EXPECT_GT(order->count(dropped), 0) << wait_name(dropped);
  expect_races();
}

TEST_P(SwapWaitsTest, WithItThereIsNoRace) {
  use_machine({.late_copies = std::get<1>(GetParam())});
  testing::swap_back_and_forth(sim::device(), std::make_shared<DropWait>());
}

INSTANTIATE_TEST_SUITE_P(All,
                         SwapWaitsTest,
                         ::testing::Combine(::testing::Values(Wait::kSwapOutAfterProducer,
                                                              Wait::kReleaseAfterSwapOut,
                                                              Wait::kSwapInAfterAllocation,
                                                              Wait::kSwapInAfterSwapOut,
                                                              Wait::kUseAfterSwapIn,
                                                              Wait::kCopyAfterHostReuse),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(wait_name(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "Late" : "Eager");
                         });

}  // namespace
}  // namespace swapline
