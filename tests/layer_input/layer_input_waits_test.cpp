// Each wait of layer-input swap taken away in turn, in a training loop that never syncs: the race
// checker reports it. The two others of the swap core (kSwapInAfterSwapOut, kCopyAfterHostReuse)
// follow from these here; they have their cases in swap_waits_test.
#include "tests/support/drop_wait.h"
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <memory>
#include <string>
#include <tuple>

namespace swapline {
namespace {

using testing::DropWait;
using testing::SwappedLayers;

class LayerInputWaitsTest : public testing::SimTest,
                            public ::testing::WithParamInterface<std::tuple<Wait, bool>> {
 protected:
  static testing::TrainOptions options() {
    testing::TrainOptions options;
    options.steps = 4;
    return options;
  }
  static testing::Outcome train_without(std::optional<Wait> dropped) {
    const auto order = std::make_shared<DropWait>(dropped);
    SwapContextOptions context;
    context.order = order;
    context.host.slab_bytes = 4096;  // one input: buffers come back while they are still read
    LayerInputOptions inputs;
    inputs.num_layers = 6;
    SwappedLayers swapped(inputs, context);
    testing::Outcome outcome = testing::train(options(), &swapped.inputs);
    if (dropped) {
      EXPECT_GT(order->count(*dropped), 0);
    }
    return outcome;
  }
};

TEST_P(LayerInputWaitsTest, LeavingItOutIsFoundAsARace) {
  const auto [dropped, late] = GetParam();
  use_machine({.late_copies = late, .copy_slowdown = 20});
  train_without(dropped);
  expect_races();
}

TEST_P(LayerInputWaitsTest, WithItTheBitsAreRightAndThereIsNoRace) {
  use_machine({.late_copies = std::get<1>(GetParam()), .copy_slowdown = 20});
  const auto got = train_without(std::nullopt);
  EXPECT_TRUE(same_bits(got, testing::train(options(), nullptr)));
}

INSTANTIATE_TEST_SUITE_P(All,
                         LayerInputWaitsTest,
                         ::testing::Combine(::testing::Values(Wait::kSwapOutAfterProducer,
                                                              Wait::kReleaseAfterSwapOut,
                                                              Wait::kSwapInAfterAllocation,
                                                              Wait::kUseAfterSwapIn),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(wait_name(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "Late" : "Eager");
                         });

}  // namespace
}  // namespace swapline
