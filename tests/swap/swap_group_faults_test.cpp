// What fails leaves the group in a named state, its memory where it belongs, and a second try
// works.
#include "swapline/swap/swap_group.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"

#include <vector>

namespace swapline {
namespace {

using testing::random_tensor;
using testing::same_bits;

class SwapFaultsTest : public testing::SimTest {
 protected:
  static constexpr size_t kBytes = size_t{4} << 12;
  static std::vector<at::Tensor> made() {
    return {random_tensor({1 << 12}, 1), random_tensor({1 << 12}, 2)};
  }
  static void expect_same(const SwapGroup& group) {
    EXPECT_TRUE(same_bits(group.tensors(), made()));
  }
  static size_t allocated() { return sim().memory_stats(0).allocated_bytes; }
};

TEST_F(SwapFaultsTest, WithoutHostMemoryTheTensorsStayOnTheDevice) {
  SwapContextOptions options;
  options.host.max_bytes = kBytes;  // one of the two
  options.host.slab_bytes = kBytes;
  SwapContext context(device(), options);
  SwapGroup group(context, made());
  EXPECT_FALSE(group.swap_out());
  EXPECT_EQ(group.residency(), Residency::kDevice);
  EXPECT_EQ(context.num_host_failures(), 1);
  EXPECT_EQ(context.host().stats().requested_bytes, 0U);
  expect_same(group);
}

TEST_F(SwapFaultsTest, AFailedPinIsTriedAgainByTheNextSwapOut) {
  SwapContextOptions options;
  options.host.slab_bytes = kBytes;  // what is refused is not asked for by halves
  SwapContext context(device(), options);
  SwapGroup group(context, made());
  sim::Faults faults;
  faults.fail_pinned_allocation = 0;
  set_faults(faults);
  EXPECT_FALSE(group.swap_out());
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  group.swap_in();
  group.wait_swap_in();
  expect_same(group);
}

TEST_F(SwapFaultsTest, AFailedCopyOutLeavesTheGroupOnTheDevice) {
  for (const Release release : {Release::kDrop, Release::kInPlace}) {
    for (int failing = 0; failing < 2; ++failing) {
      SwapContext context(device());
      const std::vector<at::Tensor> tensors = made();
      SwapGroup group(context, tensors, {"h", release});
      sim::Faults faults;
      faults.fail_copy = failing;
      set_faults(faults);
      EXPECT_ANY_THROW(group.swap_out());
      EXPECT_EQ(group.residency(), Residency::kDevice);
      EXPECT_EQ(context.host().stats().requested_bytes, 0U);
      ASSERT_TRUE(group.swap_out());
      group.release_device_storage();
      group.swap_in();
      group.wait_swap_in();
      expect_same(group);
    }
  }
}

TEST_F(SwapFaultsTest, AFailedAllocationLeavesTheGroupOnTheHost) {
  for (int failing = 0; failing < 2; ++failing) {
    SwapContext context(device());
    SwapGroup group(context, made());
    ASSERT_TRUE(group.swap_out());
    group.release_device_storage();
    sim::Faults faults;
    faults.fail_device_allocation = failing;
    set_faults(faults);
    EXPECT_THROW(group.swap_in(), c10::OutOfMemoryError);
    EXPECT_EQ(group.residency(), Residency::kHost);
    EXPECT_EQ(allocated(), 0U);
    group.swap_in();
    group.wait_swap_in();
    expect_same(group);
  }
}

TEST_F(SwapFaultsTest, AFailedCopyInLeavesTheGroupOnTheHost) {
  for (const Release release : {Release::kDrop, Release::kInPlace}) {
    for (int failing = 0; failing < 2; ++failing) {
      SwapContext context(device());
      SwapGroup group(context, made(), {"h", release});
      ASSERT_TRUE(group.swap_out());
      group.release_device_storage();
      sim::Faults faults;
      faults.fail_copy = failing;
      set_faults(faults);
      EXPECT_ANY_THROW(group.swap_in());
      EXPECT_EQ(group.residency(), Residency::kHost);
      group.swap_in();
      group.wait_swap_in();
      expect_same(group);
      sim().synchronize_device(0);
      context.settle_done();
      EXPECT_EQ(context.pending_release_bytes(), 0U);
    }
  }
}

TEST_F(SwapFaultsTest, AFullDeviceIsAnErrorAndALaterTryWorks) {
  use_machine({.capacity_bytes = size_t{64} << 20});
  SwapContext context(device());
  const auto bytes = at::TensorOptions().dtype(at::kByte).device(device());
  SwapGroup group(context, {at::full({24 << 20}, 7, bytes)});
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  {
    const at::Tensor hog = at::empty({50 << 20}, bytes);
    EXPECT_THROW(group.swap_in(), c10::OutOfMemoryError);
  }
  group.swap_in();
  group.wait_swap_in();
  EXPECT_TRUE(same_bits(group.tensors().front(), at::full({24 << 20}, 7, bytes)));
}

}  // namespace
}  // namespace swapline
