// The state machine: every allowed transition, every forbidden call, and what is held in each
// state.
#include "swapline/swap/swap_group.h"

#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::random_tensor;
using testing::same_bits;

class SwapGroupTest : public testing::SimTest {
 protected:
  static size_t allocated() { return sim().memory_stats(0).allocated_bytes; }
  static constexpr size_t kBytes = 4096 * 4;
  static at::Tensor made() { return random_tensor({4096}, 7); }
};

TEST_F(SwapGroupTest, GoesOutAndComesBackWithTheSameBits) {
  SwapContext context(device());
  SwapGroup group(context, {made()}, {"h"});
  EXPECT_EQ(group.residency(), Residency::kDevice);
  ASSERT_TRUE(group.swap_out());
  EXPECT_EQ(group.residency(), Residency::kSwappingOut);
  EXPECT_EQ(group.release_device_storage(), 0U);
  EXPECT_EQ(group.residency(), Residency::kHost);
  EXPECT_EQ(allocated(), 0U);
  EXPECT_EQ(context.host().stats().requested_bytes, kBytes);
  group.swap_in();
  EXPECT_EQ(group.residency(), Residency::kSwappingIn);
  group.wait_swap_in();
  EXPECT_EQ(group.residency(), Residency::kDevice);
  EXPECT_TRUE(same_bits(group.tensors().front(), made()));
}

TEST_F(SwapGroupTest, RecallKeepsTheDeviceCopyAndCopiesNothingBack) {
  SwapContext context(device());
  SwapGroup group(context, {made()});
  const void* data = group.tensors().front().data_ptr();
  ASSERT_TRUE(group.swap_out());
  group.recall();
  EXPECT_EQ(group.residency(), Residency::kDevice);
  EXPECT_EQ(group.tensors().front().data_ptr(), data);
  EXPECT_TRUE(same_bits(group.tensors().front(), made()));
  EXPECT_EQ(context.copies().stats().num_copies_in, 0);
}

TEST_F(SwapGroupTest, ARecalledGroupMayGoOutAgain) {
  SwapContext context(device());
  SwapGroup group(context, {made()});
  ASSERT_TRUE(group.swap_out());
  group.recall();
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  group.swap_in();
  group.wait_swap_in();
  EXPECT_TRUE(same_bits(group.tensors().front(), made()));
  EXPECT_EQ(context.host().stats().requested_bytes, kBytes);
}

TEST_F(SwapGroupTest, ADiscardedDeviceCopyComesBackFromTheHost) {
  SwapContext context(device());
  SwapGroup group(context, {made()});
  ASSERT_TRUE(group.swap_out());
  group.recall();
  group.discard_device_copy();
  EXPECT_EQ(group.residency(), Residency::kHost);
  EXPECT_EQ(allocated(), 0U);
  for (int i = 0; i < 2; ++i) {
    group.swap_in();
    group.wait_swap_in();
    EXPECT_TRUE(same_bits(group.tensors().front(), made()));
    group.discard_device_copy();
  }
  EXPECT_EQ(context.copies().stats().num_copies_out, 1);
}

TEST_F(SwapGroupTest, DiscardWithoutAHostCopyThrows) {
  SwapContext context(device());
  SwapGroup group(context, {made()}, {"h"});
  EXPECT_THAT(message_of([&] { group.discard_device_copy(); }), HasSubstr("needs a host copy"));
  ASSERT_TRUE(group.swap_out());
  group.recall();
  group.drop_host_copy();
  EXPECT_EQ(context.host().stats().requested_bytes, 0U);
  EXPECT_ANY_THROW(group.discard_device_copy());
  EXPECT_TRUE(same_bits(group.tensors().front(), made()));
}

TEST_F(SwapGroupTest, ACopyThatIsDoneIsReleasedWithoutAWait) {
  SwapContext context(device());
  SwapGroup group(context, {made()});
  ASSERT_TRUE(group.swap_out());
  EXPECT_FALSE(group.is_swap_out_done());
  sim().synchronize_device(0);
  EXPECT_TRUE(group.is_swap_out_done());
  group.release_device_storage();
  EXPECT_EQ(allocated(), 0U);
}

TEST_F(SwapGroupTest, ReleaseWhenDoneLeavesTheMemoryWithTheContext) {
  SwapContext context(device());
  SwapGroup group(context, {made()});
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage_when_done();
  EXPECT_EQ(group.residency(), Residency::kHost);
  EXPECT_EQ(allocated(), kBytes);
  group.swap_in();  // while the first copy is in flight
  group.wait_swap_in();
  EXPECT_TRUE(same_bits(group.tensors().front(), made()));
}

TEST_F(SwapGroupTest, BytesThatSomeoneElseHoldsAreReported) {
  SwapContext context(device());
  const at::Tensor held = made();
  SwapGroup group(context, {held});
  ASSERT_TRUE(group.swap_out());
  EXPECT_EQ(group.release_device_storage(), kBytes);
  EXPECT_TRUE(same_bits(held, made()));
}

// Brings a new group into a state.
std::map<Residency, std::function<void(SwapGroup&)>> ways() {
  const auto out = [](SwapGroup& group) { ASSERT_TRUE(group.swap_out()); };
  const auto host = [out](SwapGroup& group) {
    out(group);
    group.release_device_storage();
  };
  const auto in = [host](SwapGroup& group) {
    host(group);
    group.swap_in();
  };
  return {{Residency::kDevice, [](SwapGroup&) {}},
          {Residency::kSwappingOut, out},
          {Residency::kHost, host},
          {Residency::kSwappingIn, in}};
}

struct NamedCall {
  std::string name;
  Residency allowed;
  std::function<void(SwapGroup&)> call;
};

std::vector<NamedCall> calls() {
  return {
      {"swap_out", Residency::kDevice, [](SwapGroup& g) { g.swap_out(); }},
      {"release_device_storage",
       Residency::kSwappingOut,
       [](SwapGroup& g) { g.release_device_storage(); }},
      {"release_device_storage_when_done",
       Residency::kSwappingOut,
       [](SwapGroup& g) { g.release_device_storage_when_done(); }},
      {"recall", Residency::kSwappingOut, [](SwapGroup& g) { g.recall(); }},
      {"swap_in", Residency::kHost, [](SwapGroup& g) { g.swap_in(); }},
      {"wait_swap_in", Residency::kSwappingIn, [](SwapGroup& g) { g.wait_swap_in(); }},
      {"discard_device_copy", Residency::kDevice, [](SwapGroup& g) { g.discard_device_copy(); }},
      {"drop_host_copy", Residency::kDevice, [](SwapGroup& g) { g.drop_host_copy(); }},
  };
}

TEST_F(SwapGroupTest, ACallInTheWrongStateThrowsAndChangesNothing) {
  SwapContext context(device());
  for (const auto& [state, reach] : ways()) {
    for (const NamedCall& call : calls()) {
      if (call.allowed == state) {
        continue;
      }
      SwapGroup group(context, {made()}, {"layer 3"});
      reach(group);
      const std::string message = message_of([&] { call.call(group); });
      EXPECT_THAT(message, HasSubstr("'layer 3'"));
      EXPECT_THAT(message, HasSubstr(call.name + "() needs"));
      EXPECT_THAT(message, HasSubstr("in " + std::string(residency_name(state))));
      EXPECT_EQ(group.residency(), state);
    }
  }
}

TEST_F(SwapGroupTest, SwapOutTwiceThrows) {
  SwapContext context(device());
  SwapGroup group(context, {made()});
  ASSERT_TRUE(group.swap_out());
  EXPECT_THROW(group.swap_out(), c10::Error);
}

TEST_F(SwapGroupTest, TensorsOnTheHostCannotBeHad) {
  SwapContext context(device());
  SwapGroup group(context, {made()});
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  EXPECT_THROW(group.tensors(), c10::Error);
  group.swap_in();
  EXPECT_THROW(group.tensors(), c10::Error);
}

TEST_F(SwapGroupTest, MayBeDestroyedInAnyState) {
  for (const Release release : {Release::kDrop, Release::kInPlace}) {
    SwapContext context(device());
    for (const auto& [state, reach] : ways()) {
      {
        SwapGroup group(context, {made()}, {"h", release});
        reach(group);
      }
      const at::Tensor reuses_the_block = made();
    }
    EXPECT_EQ(context.host().stats().requested_bytes, 0U);
    sim().synchronize_device(0);
    context.settle_done();
    EXPECT_EQ(allocated(), 0U);
  }
}

TEST_F(SwapGroupTest, MovesWithItsState) {
  SwapContext context(device());
  SwapGroup first(context, {made()});
  ASSERT_TRUE(first.swap_out());
  SwapGroup second = std::move(first);
  EXPECT_EQ(second.residency(), Residency::kSwappingOut);
  EXPECT_THROW(first.residency(), c10::Error);
  second = SwapGroup(context, {made()});
  EXPECT_EQ(second.residency(), Residency::kDevice);
}

TEST_F(SwapGroupTest, TensorsThatMayNotBeSwappedAreRefused) {
  SwapContext context(device());
  EXPECT_THAT(message_of([&] { SwapGroup(context, {at::ones({2})}, {"h"}); }),
              HasSubstr("SwapGroup 'h': a tensor may not be swapped: it is not in the memory"));
  EXPECT_THAT(message_of([&] { SwapGroup(context, {random_tensor({2}, 1, device(1))}); }),
              HasSubstr("the context on"));
  EXPECT_THROW(SwapGroup(context, {}), c10::Error);
}

TEST_F(SwapGroupTest, InPlaceReleaseEmptiesTheCallersTensor) {
  SwapContext context(device());
  const at::Tensor tensor = made();
  const auto version = tensor._version();
  SwapGroup group(context, {tensor}, {"h", Release::kInPlace});
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  EXPECT_EQ(tensor.storage().nbytes(), 0U);
  EXPECT_EQ(allocated(), 0U);
  group.swap_in();
  group.wait_swap_in();
  EXPECT_TRUE(same_bits(tensor, made()));
  EXPECT_EQ(tensor._version(), version);
}

TEST_F(SwapGroupTest, InPlaceReleaseFindsALiveAliasWhenAsked) {
  SwapContext context(device());
  const at::Tensor tensor = made();
  SwapGroup group(context, {tensor}, {"h", Release::kInPlace, MemoryKind::kLayerInputs, true});
  ASSERT_TRUE(group.swap_out());
  {
    const at::Tensor alias = tensor.slice(0, 1, 3);
    EXPECT_THAT(message_of([&] { group.release_device_storage(); }),
                HasSubstr("1 tensor(s) outside the group share a storage"));
    EXPECT_EQ(group.residency(), Residency::kSwappingOut);
  }
  EXPECT_NO_THROW(group.release_device_storage());
}

}  // namespace
}  // namespace swapline
