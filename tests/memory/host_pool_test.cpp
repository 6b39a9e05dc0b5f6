// The pool on the simulated device: exact bytes, reuse behind copies in flight, limits and
// failures.
#include "swapline/memory/host_pool.h"

#include "swapline/copy/copy_streams.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

constexpr size_t kMiB = size_t{1} << 20;

class HostPoolTest : public testing::SimTest {
 protected:
  static HostPoolOptions small_slabs() {
    HostPoolOptions options;
    options.slab_bytes = kMiB;
    return options;
  }
  // A device storage whose copy out keeps `buffer` busy in virtual time.
  static SharedEvent copy_into(CopyStreams& copies, PinnedBuffer& buffer) {
    const c10::Storage storage = at::empty({static_cast<int64_t>(buffer.bytes())},
                                           at::TensorOptions().dtype(at::kByte).device(device()))
                                     .storage();
    const SharedEvent written = record_event(copies.compute_stream());
    written->block(copies.d2h_stream());
    SharedEvent done = copies.copy_out(storage, buffer, {0, 0, buffer.bytes()});
    done->block(copies.compute_stream());
    return done;
  }
};

TEST_F(HostPoolTest, BuffersAreAlignedAndPinned) {
  HostPool pool(device(), small_slabs());
  for (const size_t bytes : {size_t{1}, size_t{511}, size_t{513}, size_t{1000}}) {
    const PinnedBuffer buffer = pool.allocate(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 512, 0U);
    EXPECT_TRUE(sim().is_pinned(buffer.data()));
  }
  EXPECT_EQ(pool.stats().requested_bytes, 0U);
  EXPECT_EQ(pool.stats().num_slabs, 1U);
}

TEST_F(HostPoolTest, SteadyWorkPinsNothingAfterItsFirstRound) {
  HostPool pool(device(), small_slabs());
  size_t pinned_at_first = 0;
  for (int round = 0; round < 5; ++round) {
    std::vector<PinnedBuffer> held;
    for (size_t bytes = 1000; bytes < 600'000; bytes = bytes * 3 / 2) {
      held.push_back(pool.allocate(bytes));
    }
    if (round == 0) {
      pinned_at_first = pool.stats().num_pinned_allocations;
    }
  }
  EXPECT_EQ(pool.stats().num_pinned_allocations, pinned_at_first);
}

TEST_F(HostPoolTest, ChangingSizesPinNothingOnceTheLargestWasSeen) {
  HostPool pool(device(), small_slabs());
  { const PinnedBuffer largest = pool.allocate(900'000); }
  for (size_t bytes = 900'000; bytes > 1000; bytes = bytes * 9 / 10) {
    const PinnedBuffer buffer = pool.allocate(bytes);
  }
  EXPECT_EQ(pool.stats().num_pinned_allocations, 1U);
}

TEST_F(HostPoolTest, PiecesPinAtMostOnePerCentAndOneSlabMoreThanAsked) {
  HostPool pool(device(), small_slabs());
  std::vector<PinnedBuffer> held;
  // Just over half a slab each: whole pieces would waste almost half of the memory.
  for (int i = 0; i < 40; ++i) {
    size_t got = 0;
    for (PinnedBuffer& piece : pool.allocate_pieces(kMiB / 2 + 4097)) {
      got += piece.bytes();
      held.push_back(std::move(piece));
    }
    EXPECT_EQ(got, kMiB / 2 + 4097);
  }
  const HostPoolStats stats = pool.stats();
  EXPECT_EQ(stats.requested_bytes, 40 * (kMiB / 2 + 4097));
  EXPECT_LE(stats.pinned_bytes, stats.requested_bytes * 101 / 100 + kMiB);
  EXPECT_EQ(sim().pinned_stats().allocated_bytes, stats.pinned_bytes);
}

TEST_F(HostPoolTest, OddBytesBeyondASlabAreNotRoundedUp) {
  HostPool pool(device(), small_slabs());
  const PinnedBuffer one = pool.allocate(8 * kMiB + 1);
  EXPECT_LE(pool.stats().pinned_bytes, (8 * kMiB + 1) * 101 / 100 + kMiB);
  const std::vector<PinnedBuffer> pieces = pool.allocate_pieces(8 * kMiB + 1);
  EXPECT_EQ(pieces.size(), 9U);
  EXPECT_LE(pool.stats().pinned_bytes, 2 * (8 * kMiB + 1) * 101 / 100 + kMiB);
}

TEST_F(HostPoolTest, AFreePieceThatFitsIsHandedOutWhole) {
  HostPool pool(device(), small_slabs());
  pool.reserve(kMiB);
  EXPECT_EQ(pool.allocate_pieces(kMiB).size(), 1U);
  EXPECT_EQ(pool.stats().num_pinned_allocations, 1U);
}

TEST_F(HostPoolTest, ReservedBytesAreThereWithoutPinning) {
  HostPool pool(device(), small_slabs());
  pool.reserve(3 * kMiB);
  const size_t pinned = pool.stats().num_pinned_allocations;
  const PinnedBuffer buffer = pool.allocate(3 * kMiB);
  EXPECT_EQ(pool.stats().num_pinned_allocations, pinned);
}

TEST_F(HostPoolTest, BytesInFlightCarryTheirUsesToTheNextOwner) {
  HostPool pool(device(), small_slabs());
  CopyStreams copies(device());
  PinnedBuffer first = pool.allocate(kMiB);
  void* data = first.data();
  const SharedEvent done = copy_into(copies, first);
  ASSERT_FALSE(done->query());
  first = PinnedBuffer();
  {
    const PinnedBuffer next = pool.allocate(kMiB);
    EXPECT_EQ(next.data(), data);
    ASSERT_EQ(next.former_uses().size(), 1U);
    EXPECT_EQ(next.former_uses().front(), done);
    EXPECT_TRUE(next.uses().empty());
  }
  done->synchronize();
  const PinnedBuffer later = pool.allocate(kMiB);
  EXPECT_TRUE(later.former_uses().empty());
}

TEST_F(HostPoolTest, IdleBytesArePreferredToBytesInFlight) {
  HostPool pool(device(), small_slabs());
  CopyStreams copies(device());
  PinnedBuffer busy = pool.allocate(kMiB);
  PinnedBuffer idle = pool.allocate(kMiB);
  void* idle_data = idle.data();
  const SharedEvent done = copy_into(copies, busy);
  busy = PinnedBuffer();
  idle = PinnedBuffer();
  EXPECT_EQ(pool.allocate(kMiB).data(), idle_data);
  done->synchronize();
}

TEST_F(HostPoolTest, NeighboursInFlightServeALargerRequestTogether) {
  HostPool pool(device(), small_slabs());
  CopyStreams copies(device());
  PinnedBuffer first = pool.allocate(kMiB / 2);
  PinnedBuffer second = pool.allocate(kMiB / 2);
  copy_into(copies, first);
  const SharedEvent last = copy_into(copies, second);
  first = PinnedBuffer();
  second = PinnedBuffer();
  const PinnedBuffer whole = pool.allocate(kMiB);
  EXPECT_EQ(whole.former_uses().size(), 2U);
  EXPECT_EQ(pool.stats().num_slabs, 1U);
  last->synchronize();
}

TEST_F(HostPoolTest, WaitForUsesBlocksUntilTheCopyIsDone) {
  HostPool pool(device(), small_slabs());
  CopyStreams copies(device());
  PinnedBuffer buffer = pool.allocate(kMiB);
  const SharedEvent done = copy_into(copies, buffer);
  EXPECT_FALSE(done->query());
  buffer.wait_for_uses();
  EXPECT_TRUE(done->query());
  EXPECT_TRUE(buffer.uses().empty());
}

TEST_F(HostPoolTest, ManyUsesOfOneBufferAreForgottenWhenDone) {
  HostPool pool(device(), small_slabs());
  CopyStreams copies(device());
  PinnedBuffer buffer = pool.allocate(4096);
  for (int i = 0; i < 100; ++i) {
    copy_into(copies, buffer)->synchronize();
  }
  EXPECT_LE(buffer.uses().size(), 9U);
}

TEST_F(HostPoolTest, ABufferThatGoesRoundWhileTheHostRunsAheadCarriesOneUse) {
  use_machine({.copy_slowdown = 1000});
  HostPool pool(device(), small_slabs());
  CopyStreams copies(device());
  SharedEvent last;
  for (int i = 0; i < 50; ++i) {
    PinnedBuffer buffer = pool.allocate(kMiB);
    EXPECT_EQ(buffer.former_uses().size(), i == 0 ? 0U : 1U);
    last = copy_into(copies, buffer);
    ASSERT_FALSE(last->query());
  }
  EXPECT_EQ(pool.stats().num_slabs, 1U);
  last->synchronize();
}

TEST_F(HostPoolTest, TheBudgetStopsARequestAndSaysWhatToTurn) {
  HostPoolOptions options = small_slabs();
  options.max_bytes = 2 * kMiB;
  options.budget_option = "--host.max-bytes";
  HostPool pool(device(), options);
  const PinnedBuffer held = pool.allocate(kMiB);
  const std::string message = message_of([&] { pool.allocate(3 * kMiB); });
  EXPECT_THAT(message, HasSubstr("host memory"));
  EXPECT_THAT(message, HasSubstr("3.0 MiB"));
  EXPECT_THAT(message, HasSubstr("only 1.0 MiB are free under the budget of 2.0 MiB"));
  EXPECT_THAT(message, HasSubstr("--host.max-bytes"));
  EXPECT_FALSE(pool.try_allocate(3 * kMiB).has_value());
  EXPECT_EQ(pool.stats().num_failures, 2U);
  EXPECT_TRUE(pool.try_allocate(kMiB).has_value());
}

TEST_F(HostPoolTest, ASmallerSlabIsPinnedWhereAWholeOneDoesNotFit) {
  HostPoolOptions options = small_slabs();
  options.max_bytes = kMiB / 2;
  HostPool pool(device(), options);
  const PinnedBuffer buffer = pool.allocate(100'000);
  EXPECT_EQ(pool.stats().pinned_bytes, kMiB / 2);
}

TEST_F(HostPoolTest, TheSystemsLimitIsAskedBeforePinning) {
  HostPoolOptions options = small_slabs();
  options.read_limit = [] { return HostLimit{1000, "a made-up limit"}; };
  HostPool pool(device(), options);
  const std::string message = message_of([&] { pool.allocate(2000); });
  EXPECT_THAT(message, HasSubstr("only 1000 B are free under a made-up limit"));
  EXPECT_EQ(sim().pinned_stats().num_allocations, 0);
}

TEST_F(HostPoolTest, AFailedPinLeavesThePoolAsItWas) {
  HostPool pool(device(), small_slabs());
  const PinnedBuffer held = pool.allocate(kMiB);
  sim::Faults faults;
  faults.fail_pinned_allocation = 0;
  set_faults(faults);
  const std::string message = message_of([&] { pool.allocate(kMiB); });
  EXPECT_THAT(message, HasSubstr("host memory: the device's allocator refused to pin 1.0 MiB"));
  EXPECT_EQ(pool.stats().num_slabs, 1U);
  EXPECT_EQ(pool.stats().requested_bytes, kMiB);
  EXPECT_NO_THROW(pool.allocate(kMiB));
}

TEST_F(HostPoolTest, AFailureInTheMiddleOfPiecesHandsAllBack) {
  HostPool pool(device(), small_slabs());
  for (int failing = 0; failing < 4; ++failing) {
    sim::Faults faults;
    faults.fail_pinned_allocation = failing;
    set_faults(faults);
    EXPECT_THROW(pool.allocate_pieces(5 * kMiB + 1), HostMemoryError);
    EXPECT_EQ(pool.stats().requested_bytes, 0U);
    pool.trim();
    EXPECT_EQ(pool.stats().pinned_bytes, 0U);
  }
  set_faults({});
  EXPECT_NO_THROW(pool.allocate_pieces(5 * kMiB + 1));
}

TEST_F(HostPoolTest, TrimReturnsWhollyFreeSlabsAfterTheirCopies) {
  HostPool pool(device(), small_slabs());
  CopyStreams copies(device());
  const PinnedBuffer held = pool.allocate(kMiB);
  PinnedBuffer busy = pool.allocate(kMiB);
  const SharedEvent done = copy_into(copies, busy);
  busy = PinnedBuffer();
  pool.trim();
  EXPECT_TRUE(done->query());
  EXPECT_EQ(pool.stats().num_slabs, 1U);
  EXPECT_EQ(sim().pinned_stats().allocated_bytes, kMiB);
}

TEST_F(HostPoolTest, MovingABufferMovesItsBytes) {
  HostPool pool(device(), small_slabs());
  PinnedBuffer first = pool.allocate(100);
  void* data = first.data();
  PinnedBuffer second = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(second.data(), data);
  second = pool.allocate(100);
  EXPECT_NE(second.data(), data);
  EXPECT_EQ(pool.stats().requested_bytes, 100U);
}

TEST_F(HostPoolTest, AskingForNothingOrOnTheCpuIsAnError) {
  HostPool pool(device(), small_slabs());
  EXPECT_THROW(pool.allocate(0), c10::Error);
  EXPECT_THROW(pool.allocate_pieces(0), c10::Error);
  EXPECT_THROW(HostPool(c10::Device(c10::kCPU)), c10::Error);
}

}  // namespace
}  // namespace swapline
