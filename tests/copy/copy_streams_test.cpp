// Byte copies on side streams: exact, unseen by autograd, ordered behind a buffer's former owners.
#include "swapline/copy/copy_streams.h"

#include "swapline/copy/timed_span.h"
#include "tests/support/drop_wait.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"

#include <cstring>
#include <memory>
#include <set>
#include <string>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::keep_busy;
using testing::message_of;
using testing::random_tensor;

class CopyStreamsTest : public testing::SimTest {
 protected:
  static void order(const c10::Stream& later, const c10::Stream& former) {
    record_event(former)->block(later);
  }
};

TEST_F(CopyStreamsTest, BytesAtOddOffsetsComeBackExactly) {
  HostPool pool(device());
  CopyStreams copies(device());
  const at::Tensor source = random_tensor({1001}, 1);
  const at::Tensor target = at::zeros_like(source);
  PinnedBuffer host = pool.allocate(4000);
  order(copies.d2h_stream(), copies.compute_stream());
  order(copies.h2d_stream(), copies.compute_stream());
  const SharedEvent out = copies.copy_out(source.storage(), host, {4, 13, 3976});
  out->block(copies.h2d_stream());
  copies.copy_in(target.storage(), host, {4, 13, 3976})->block(copies.compute_stream());
  EXPECT_TRUE(testing::same_bits(target.slice(0, 1, 995), source.slice(0, 1, 995)));
  EXPECT_EQ(target[0].item<float>(), 0);
  EXPECT_EQ(target[995].item<float>(), 0);
  EXPECT_EQ(copies.stats().num_copies_out, 1);
  EXPECT_EQ(copies.stats().bytes_out, 3976);
  EXPECT_EQ(copies.stats().num_copies_in, 1);
  EXPECT_EQ(copies.stats().bytes_in, 3976);
}

TEST_F(CopyStreamsTest, CopiesRunOnTheirOwnStreamsAndDoNotBlockTheHost) {
  HostPool pool(device());
  CopyStreams copies(device());
  const at::Tensor source = random_tensor({1 << 20}, 1);
  PinnedBuffer host = pool.allocate(source.nbytes());
  order(copies.d2h_stream(), copies.compute_stream());
  const SharedEvent done = copies.copy_out(source.storage(), host, {0, 0, source.nbytes()});
  EXPECT_FALSE(done->query());
  EXPECT_TRUE(copies.compute_stream().query());
  EXPECT_NE(copies.d2h_stream(), copies.h2d_stream());
  done->synchronize();
  EXPECT_EQ(std::memcmp(host.data(), source.cpu().data_ptr(), source.nbytes()), 0);
}

TEST_F(CopyStreamsTest, NoTensorSeesAVersionChange) {
  HostPool pool(device());
  CopyStreams copies(device());
  const at::Tensor tensor = random_tensor({64}, 1).requires_grad_(true) * 2;
  const auto version = tensor._version();
  PinnedBuffer host = pool.allocate(tensor.nbytes());
  order(copies.d2h_stream(), copies.compute_stream());
  copies.copy_out(tensor.storage(), host, {0, 0, tensor.nbytes()})->block(copies.h2d_stream());
  copies.copy_in(tensor.storage(), host, {0, 0, tensor.nbytes()})->block(copies.compute_stream());
  EXPECT_EQ(tensor._version(), version);
}

TEST_F(CopyStreamsTest, RangesOutsideAreRefused) {
  HostPool pool(device());
  CopyStreams copies(device());
  const at::Tensor tensor = random_tensor({64}, 1);
  PinnedBuffer host = pool.allocate(256);
  EXPECT_THROW(copies.copy_out(tensor.storage(), host, {4, 0, tensor.nbytes()}), c10::Error);
  EXPECT_THROW(copies.copy_in(tensor.storage(), host, {0, 1, 256}), c10::Error);
  const at::Tensor elsewhere = random_tensor({64}, 1, device(1));
  EXPECT_THAT(message_of([&] { copies.copy_out(elsewhere.storage(), host, {0, 0, 4}); }),
              HasSubstr("the storage is on"));
}

TEST_F(CopyStreamsTest, ADeviceWithoutMemoryOfItsOwnIsRefused) {
  EXPECT_THROW(CopyStreams(c10::Device(c10::kCPU)), c10::Error);
  EXPECT_THROW(CopyStreams(c10::Device(c10::DeviceType::PrivateUse1)), c10::Error);
}

// A buffer given back while the device still reads it, taken by the other direction.
void reuse_a_buffer_in_flight(const std::shared_ptr<StreamOrder>& order) {
  HostPoolOptions one_buffer;
  one_buffer.slab_bytes = size_t{512} << 10;
  one_buffer.max_bytes = one_buffer.slab_bytes;
  HostPool pool(sim::device(), one_buffer);
  CopyStreams copies(sim::device(), order);
  const at::Tensor first = random_tensor({100'000}, 1);
  const at::Tensor second = random_tensor({100'000}, 2);
  PinnedBuffer host = pool.allocate(first.nbytes());
  record_event(copies.compute_stream())->block(copies.d2h_stream());
  record_event(copies.compute_stream())->block(copies.h2d_stream());
  copies.copy_out(first.storage(), host, {0, 0, first.nbytes()})->block(copies.h2d_stream());
  const SharedEvent read = copies.copy_in(first.storage(), host, {0, 0, first.nbytes()});
  host = PinnedBuffer();
  PinnedBuffer again = pool.allocate(second.nbytes());
  const SharedEvent out = copies.copy_out(second.storage(), again, {0, 0, second.nbytes()});
  read->synchronize();
  out->synchronize();
}

TEST_F(CopyStreamsTest, AReusedBufferWaitsForItsFormerOwner) {
  const auto order = std::make_shared<testing::DropWait>();
  reuse_a_buffer_in_flight(order);
  EXPECT_GT(order->count(Wait::kCopyAfterHostReuse), 0);
}

TEST_F(CopyStreamsTest, WithoutTheWaitForReuseTheRaceIsFound) {
  expect_races();
  reuse_a_buffer_in_flight(std::make_shared<testing::DropWait>(Wait::kCopyAfterHostReuse));
}

TEST_F(CopyStreamsTest, AFailedCopyIsReportedAndTheNextOneWorks) {
  HostPool pool(device());
  CopyStreams copies(device());
  const at::Tensor tensor = random_tensor({64}, 1);
  PinnedBuffer host = pool.allocate(tensor.nbytes());
  sim::Faults faults;
  faults.fail_copy = 0;
  set_faults(faults);
  order(copies.d2h_stream(), copies.compute_stream());
  EXPECT_ANY_THROW(copies.copy_out(tensor.storage(), host, {0, 0, tensor.nbytes()}));
  EXPECT_TRUE(host.uses().empty());
  EXPECT_EQ(copies.stats().num_copies_out, 0);
  copies.copy_out(tensor.storage(), host, {0, 0, tensor.nbytes()})->synchronize();
  EXPECT_EQ(std::memcmp(host.data(), tensor.cpu().data_ptr(), tensor.nbytes()), 0);
}

TEST_F(CopyStreamsTest, TimedSpansSumTheTimeBetweenTheirEvents) {
  CopyStreams copies(device());
  TimedSpans spans;
  const c10::Stream stream = copies.compute_stream();
  spans.begin(stream);
  keep_busy(10);
  spans.end(stream);
  const double one = spans.total_ms();
  EXPECT_GT(one, 0);
  keep_busy(10);  // outside
  spans.begin(stream);
  keep_busy(10);
  spans.end(stream);
  EXPECT_NEAR(spans.total_ms(), 2 * one, 0.5 * one);
  spans.reset();
  EXPECT_EQ(spans.total_ms(), 0);
  EXPECT_THROW(spans.end(stream), c10::Error);
}

TEST_F(CopyStreamsTest, EveryWaitHasItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i < kNumWaits; ++i) {
    names.emplace(wait_name(static_cast<Wait>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumWaits));
}

}  // namespace
}  // namespace swapline
