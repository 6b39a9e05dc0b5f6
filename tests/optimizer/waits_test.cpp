// Each wait of the pipeline is needed: without it the race checker reports the missing order.
#include "tests/optimizer/training.h"

#include <memory>
#include <optional>
#include <vector>

#include <ATen/ops/full.h>

namespace swapline::testing {
namespace {

class WaitsTest : public OptimizerTest {
 protected:
  // Steps back to back, then something that reuses the slots' memory on the compute stream.
  void train_without(std::optional<Wait> wait) {
    auto order = std::make_shared<DropWait>(wait);
    {
      const auto groups = plain_groups({{300, 300}, {1000}, {64, 64}});
      const Gradients gradients(groups, 3, false);
      const auto context = make_context(order);
      AdamOptions options;
      options.swap_optimizer_times = 4;
      Adam adam(context, groups, options);
      // Memory that compute has just used and freed: the slots come to lie in it.
      const auto bytes = static_cast<int64_t>(adam.stats().slot_bytes);
      for (int i = 0; i < 3; ++i) {
        at::full({bytes}, 1, at::TensorOptions().dtype(at::kByte).device(sim::device()));
      }
      for (int step = 0; step < 3; ++step) {
        gradients.set(groups, step);
        adam.step();
      }
      context->settle_all();
      const auto reused =
          at::full({bytes}, 2, at::TensorOptions().dtype(at::kByte).device(sim::device()));
    }
    if (wait) {
      EXPECT_GT(order->count(*wait), 0);
      expect_races();
    }
  }
};

TEST_F(WaitsTest, WithAllWaitsThereAreNoRaces) {
  train_without(std::nullopt);
}

TEST_F(WaitsTest, LoadWithoutWaitingForTheAllocationRaces) {
  train_without(Wait::kSwapInAfterAllocation);
}

TEST_F(WaitsTest, LoadWithoutWaitingForTheSlotRaces) {
  train_without(Wait::kLoadAfterSlotFree);
}

TEST_F(WaitsTest, UpdateWithoutWaitingForTheLoadRaces) {
  train_without(Wait::kUpdateAfterLoad);
}

TEST_F(WaitsTest, StoreWithoutWaitingForTheUpdateRaces) {
  train_without(Wait::kStoreAfterUpdate);
}

TEST_F(WaitsTest, ReleaseWithoutWaitingForTheStoreRaces) {
  train_without(Wait::kReleaseSlotAfterStore);
}

TEST_F(WaitsTest, ZeroingTheHostStatesWithoutWaitingForTheZerosRaces) {
  train_without(Wait::kSwapOutAfterProducer);
}

// The last chunk is stored after the slots that a step with that chunk alone takes first.
TEST_F(WaitsTest, LoadWithoutWaitingForTheChunksLastStoreRaces) {
  use_machine({.copy_slowdown = 100});  // the step's copies still run when the next step begins
  auto order = std::make_shared<DropWait>(Wait::kLoadAfterStore);
  {
    const auto groups = plain_groups({{256, 256}, {256, 256}, {64}});
    const Gradients gradients(groups, 1, false);
    AdamOptions options;
    options.swap_optimizer_times = 4;
    Adam adam(make_context(order), groups, options);
    gradients.set(groups, 0);
    adam.step();
    groups[0].params[0].mutable_grad().reset();
    groups[0].params[1].mutable_grad().reset();
    adam.step();
  }
  EXPECT_GT(order->count(Wait::kLoadAfterStore), 0);
  expect_races();
}

}  // namespace
}  // namespace swapline::testing
