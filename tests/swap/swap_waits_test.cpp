// Each wait of the swap core taken away in turn: the race checker reports it, eager copies and
// late.
#include "swapline/swap/swap_group.h"
#include "tests/support/drop_wait.h"
#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"

#include <memory>
#include <string>
#include <tuple>

namespace swapline {
namespace {

using testing::DropWait;

// A few swaps under way at a time, as a model makes them, with the memory and the host buffers of
// one used by the next. Uses every wait of the swap core.
void swap_back_and_forth(const std::shared_ptr<StreamOrder>& order) {
  SwapContextOptions options;
  options.order = order;
  options.host.slab_bytes = size_t{256} << 10;  // one buffer
  SwapContext context(sim::device(), options);
  const auto on_device = at::TensorOptions().device(sim::device());
  for (int round = 0; round < 3; ++round) {
    at::Tensor tensor = at::full({1 << 16}, 1.0, on_device).mul_(2);
    SwapGroup group(context, {tensor});
    tensor.reset();
    ASSERT_TRUE(group.swap_out());
    if (round == 1) {
      group.release_device_storage_when_done();
    } else {
      group.release_device_storage();
    }
    const at::Tensor reuses_the_block = at::full({1 << 16}, 3.0, on_device);
    at::Tensor scratch = reuses_the_block * 2;
    scratch.reset();
    group.swap_in();
    group.wait_swap_in();
    group.tensors().front().add_(1);
  }
  // The buffer of a copy that is still read goes to the next group at once.
  for (int i = 0; i < 2; ++i) {
    SwapGroup group(context, {at::full({1 << 16}, 4.0, on_device)});
    ASSERT_TRUE(group.swap_out());
    group.release_device_storage_when_done();
    group.swap_in();
  }
  context.settle_all();
}

class SwapWaitsTest : public testing::SimTest,
                      public ::testing::WithParamInterface<std::tuple<Wait, bool>> {};

TEST_P(SwapWaitsTest, LeavingItOutIsFoundAsARace) {
  const auto [dropped, late] = GetParam();
  use_machine({.late_copies = late});
  const auto order = std::make_shared<DropWait>(dropped);
  swap_back_and_forth(order);
  EXPECT_GT(order->count(dropped), 0) << wait_name(dropped);
  expect_races();
}

TEST_P(SwapWaitsTest, WithItThereIsNoRace) {
  use_machine({.late_copies = std::get<1>(GetParam())});
  swap_back_and_forth(std::make_shared<DropWait>());
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
