// The context's pending list, exposed time and counts.
#include "swapline/swap/swap_context.h"

#include "swapline/swap/swap_group.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"

namespace swapline {
namespace {

using testing::keep_busy;
using testing::random_tensor;

class SwapContextTest : public testing::SimTest {
 protected:
  static size_t allocated() { return sim().memory_stats(0).allocated_bytes; }
};

TEST_F(SwapContextTest, ADeviceWithoutMemoryOfItsOwnIsRefused) {
  EXPECT_THROW(SwapContext(c10::Device(c10::kCPU)), c10::Error);
}

TEST_F(SwapContextTest, PendingMemoryIsFreedWhenItsCopyIsDone) {
  SwapContext context(device());
  SwapGroup group(context, {random_tensor({1 << 16}, 1)});
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage_when_done();
  EXPECT_EQ(context.pending_release_bytes(), size_t{4} << 16);
  context.settle_done();
  EXPECT_EQ(context.pending_release_bytes(), size_t{4} << 16);
  sim().synchronize_device(0);
  context.settle_done();
  EXPECT_EQ(context.pending_release_bytes(), 0U);
  EXPECT_EQ(allocated(), 0U);
}

TEST_F(SwapContextTest, SettleAllFreesAtOnceBehindAWaitOfCompute) {
  SwapContext context(device());
  SwapGroup group(context, {random_tensor({1 << 16}, 1)});
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage_when_done();
  context.settle_all();
  EXPECT_EQ(context.pending_release_bytes(), 0U);
  EXPECT_EQ(allocated(), 0U);
  const at::Tensor reuses_the_block = random_tensor({1 << 16}, 2);
}

TEST_F(SwapContextTest, DestroyingItWithCopiesInFlightIsSafe) {
  auto context = std::make_unique<SwapContext>(device());
  {
    SwapGroup group(*context, {random_tensor({1 << 16}, 1)});
    ASSERT_TRUE(group.swap_out());
  }
  EXPECT_GT(context->pending_release_bytes(), 0U);
  context.reset();
  EXPECT_EQ(allocated(), 0U);
}

TEST_F(SwapContextTest, ExposedTimeIsWhatComputeStoodStill) {
  SwapContextOptions options;
  options.timing = true;
  SwapContext context(device(), options);
  SwapGroup group(context, {random_tensor({1 << 18}, 1)});  // 1 MiB: about 105 us
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  EXPECT_NEAR(context.exposed_ms(Wait::kReleaseAfterSwapOut), 0.11, 0.02);
  group.swap_in();
  keep_busy(100, 256);  // longer than the copy
  group.wait_swap_in();
  EXPECT_NEAR(context.exposed_ms(Wait::kUseAfterSwapIn), 0, 0.001);
  context.reset_exposed();
  EXPECT_EQ(context.exposed_ms(Wait::kReleaseAfterSwapOut), 0);
}

TEST_F(SwapContextTest, DeviceMemoryIsReportedToTheAccount) {
  std::vector<size_t> seen;
  SwapContextOptions options;
  options.on_device_memory = [&seen](const c10::Storage& storage, MemoryKind kind) {
    EXPECT_EQ(kind, MemoryKind::kLayerInputs);
    seen.push_back(storage.nbytes());
  };
  SwapContext context(device(), options);
  SwapGroup group(context, {random_tensor({100}, 1)});
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  group.swap_in();
  group.wait_swap_in();
  EXPECT_EQ(seen, (std::vector<size_t>{400, 400}));
}

}  // namespace
}  // namespace swapline
