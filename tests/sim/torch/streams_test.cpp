// Streams and events through c10: order, races, late copies, the host, time.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <cmath>
#include <string>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::testing {
namespace {

class StreamsTest : public SimTest {
 protected:
  static c10::Stream new_stream(int index = 0) {
    return c10::impl::VirtualGuardImpl(at::kPrivateUse1).getNewStream(device(index));
  }
  static c10::Stream current(int index = 0) {
    return c10::impl::VirtualGuardImpl(at::kPrivateUse1).getStream(device(index));
  }
  static c10::Event recorded_on(const c10::Stream& stream) {
    c10::Event event(at::kPrivateUse1);
    event.record(stream);
    return event;
  }
  static at::Tensor pinned(at::IntArrayRef sizes) {
    return at::empty(sizes, at::TensorOptions().pinned_memory(true));
  }
  void expect_race(const std::string& first, const std::string& second) {
    ASSERT_GT(sim().num_races(), 0);
    EXPECT_EQ(sim().races()[0].first.op, first) << first_race();
    EXPECT_EQ(sim().races()[0].second.op, second) << first_race();
    expect_races();
  }
};

TEST_F(StreamsTest, WorkGoesToTheCurrentStream) {
  const c10::Stream side = new_stream();
  EXPECT_NE(side, current());
  {
    const c10::StreamGuard guard(side);
    EXPECT_EQ(current(), side);
    keep_busy(1);
  }
  EXPECT_NE(current(), side);
  EXPECT_GT(sim().stream_time(0, static_cast<sim::StreamId>(side.id())), 0);
  EXPECT_EQ(sim().stream_time(0, 0), 0);
}

TEST_F(StreamsTest, MissingWaitIsFound) {
  const at::Tensor x = at::ones({64}, device());
  const at::Tensor y = x.mul(3);
  const c10::StreamGuard guard(new_stream());
  y.sigmoid();
  expect_race("aten::mul", "aten::sigmoid");
}

TEST_F(StreamsTest, WaitForTheEventIsClean) {
  const c10::Stream side = new_stream();
  const at::Tensor y = at::ones({64}, device()).mul(3);
  c10::Event made = recorded_on(current());
  made.block(side);
  at::Tensor z;
  {
    const c10::StreamGuard guard(side);
    z = y.sigmoid();
  }
  recorded_on(side).block(current());
  EXPECT_TRUE(at::equal(z.cpu(), at::full({64}, 3.0F).sigmoid()));
}

TEST_F(StreamsTest, WriteUnderAReaderOnAnotherStreamIsFound) {
  const c10::Stream side = new_stream();
  at::Tensor x = at::ones({64}, device());
  recorded_on(current()).block(side);
  {
    const c10::StreamGuard guard(side);
    x.sigmoid();
  }
  x.add_(1);
  expect_race("aten::sigmoid", "aten::add_");
}

TEST_F(StreamsTest, ReuseOfAFreedTensorStillReadElsewhereIsFound) {
  const c10::Stream side = new_stream();
  const at::Tensor buffer = pinned({64});
  at::Tensor x = at::ones({64}, device());
  recorded_on(current()).block(side);
  {
    const c10::StreamGuard guard(side);
    at::Tensor(buffer).copy_(x, /*non_blocking=*/true);
  }
  x = at::Tensor();
  at::zeros({64}, device());
  ASSERT_GT(sim().num_races(), 0);
  EXPECT_EQ(sim().races()[0].first.op, "copy out");
  side.synchronize();
  expect_races();
}

TEST_F(StreamsTest, TwoHalvesOfOneTensorMayBeWrittenInParallel) {
  const c10::Stream side = new_stream();
  at::Tensor x = at::zeros({64}, device());
  recorded_on(current()).block(side);
  x.slice(0, 0, 32).fill_(1);
  {
    const c10::StreamGuard guard(side);
    x.slice(0, 32).fill_(2);
  }
  recorded_on(side).block(current());
  EXPECT_EQ(x.sum().item<float>(), 96);
}

TEST_F(StreamsTest, LateCopiesShowAForgottenWaitAsWrongNumbers) {
  use_machine({.late_copies = true});
  const c10::Stream side = new_stream();
  const at::Tensor buffer = pinned({64}).fill_(1);
  at::Tensor x = at::empty({64}, device());
  {
    const c10::StreamGuard guard(side);
    x.copy_(buffer, /*non_blocking=*/true);
  }
  c10::Event arrived = recorded_on(side);
  const at::Tensor wrong = x * 2;  // does not wait
  arrived.block(current());
  const at::Tensor right = x * 2;
  EXPECT_TRUE(std::isnan(wrong.cpu()[0].item<float>()));
  EXPECT_TRUE(at::equal(right.cpu(), at::full({64}, 2.0F)));
  expect_race("copy in", "aten::mul");
}

TEST_F(StreamsTest, LateCopiesAndRightWaitsGiveTheRightNumbers) {
  use_machine({.late_copies = true});
  const c10::Stream side = new_stream();
  const at::Tensor buffer = pinned({64});
  at::Tensor x = at::full({64}, 3.0F, device());
  recorded_on(current()).block(side);
  {
    const c10::StreamGuard guard(side);
    at::Tensor(buffer).copy_(x, /*non_blocking=*/true);
  }
  recorded_on(side).block(current());
  x.zero_();
  {
    const c10::StreamGuard guard(side);
    recorded_on(c10::Stream(c10::Stream::DEFAULT, device())).block(side);
    x.copy_(buffer, /*non_blocking=*/true);
  }
  recorded_on(side).block(current());
  EXPECT_TRUE(at::equal((x + 1).cpu(), at::full({64}, 4.0F)));
}

class HostWatchTest : public StreamsTest {
 protected:
  void SetUp() override {
    sim::SimulatorOptions options = machine();
    options.watch_host_ops = true;
    sim::configure(options);
  }
  void TearDown() override {
    StreamsTest::TearDown();
    use_machine();  // the observer goes with its machine
  }
};

TEST_F(HostWatchTest, HostOperatorOnAPinnedBufferInFlightIsFound) {
  const at::Tensor buffer = pinned({64}).fill_(1);
  const at::Tensor x = at::ones({64}, device());
  at::Tensor(buffer).copy_(x, /*non_blocking=*/true);
  buffer.sum();
  expect_race("copy out", "aten::sum");
}

TEST_F(HostWatchTest, HostOperatorAfterAWaitIsClean) {
  const at::Tensor buffer = pinned({64}).fill_(1);
  const at::Tensor x = at::full({64}, 2.0F, device());
  at::Tensor(buffer).copy_(x, /*non_blocking=*/true);
  recorded_on(current()).synchronize();
  EXPECT_EQ(buffer.sum().item<float>(), 128);
}

TEST_F(HostWatchTest, WhatAKernelCallsOnMappedMemoryIsNotTheHosts) {
  const at::Tensor buffer = pinned({64}).fill_(1);
  const at::Tensor mapped = at::from_blob(
      buffer.mutable_data_ptr(),
      {64},
      [buffer](void*) {},
      buffer.options().device(device()).pinned_memory(std::nullopt),
      device());
  const at::Tensor x = at::full({64}, 2.0F, device());
  at::_foreach_lerp_({mapped}, {x}, 0.5);  // the CPU's kernel calls lerp_ for each tensor
  at::_foreach_lerp_({mapped}, {x}, 0.5);
  recorded_on(current()).synchronize();
  EXPECT_EQ(buffer[0].item<float>(), 1.75);
}

TEST_F(HostWatchTest, HostWriteUnderACopyToTheDeviceIsFound) {
  const at::Tensor buffer = pinned({64}).fill_(1);
  at::Tensor x = at::empty({64}, device());
  x.copy_(buffer, /*non_blocking=*/true);
  buffer.view({8, 8});  // a view reads nothing
  buffer.add(1);        // two readers
  EXPECT_EQ(sim().num_races(), 0) << first_race();
  buffer.mul_(2);
  expect_race("copy in", "aten::mul_");
}

TEST_F(StreamsTest, QueriesFollowTheHostsTime) {
  keep_busy(2);
  c10::Event event = recorded_on(current());
  EXPECT_FALSE(event.query());
  EXPECT_FALSE(current().query());
  event.synchronize();
  EXPECT_TRUE(event.query());
  EXPECT_TRUE(current().query());
  keep_busy(1);
  c10::impl::VirtualGuardImpl(at::kPrivateUse1).synchronizeDevice(0);
  EXPECT_EQ(sim().host_time(0), sim().stream_time(0, 0));
}

TEST_F(StreamsTest, ElapsedTimeIsVirtual) {
  c10::Event begin(at::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event end(at::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  const at::Tensor x = at::ones({1000, 1000}, device());
  begin.record(current());
  at::mm(x, x);  // 2e9 operations at 1 TFLOP/s
  end.record(current());
  end.synchronize();
  EXPECT_NEAR(begin.elapsedTime(end), 2.0, 0.01);
}

TEST_F(StreamsTest, UnrecordedEventIsDoneAndOrdersNothing) {
  c10::Event event(at::kPrivateUse1);
  EXPECT_TRUE(event.query());
  event.block(current());
  event.synchronize();
}

TEST_F(StreamsTest, BackwardRunsOnTheStreamOfItsForward) {
  const c10::Stream side = new_stream();
  at::Tensor w = at::ones({16, 16}, device()).requires_grad_();
  recorded_on(current()).block(side);
  at::Tensor loss;
  {
    const c10::StreamGuard guard(side);
    loss = at::mm(w, w).sum();
  }
  recorded_on(side).block(current());
  loss.backward();
  EXPECT_TRUE(at::equal(w.grad().cpu(), at::full({16, 16}, 32.0F)));
  w.mutable_grad() = at::Tensor();
}

TEST_F(StreamsTest, BackwardOnTwoDevices) {
  at::Tensor here = at::ones({16}, device(0)).requires_grad_();
  const at::Tensor there = (here * 2).to(device(1)) * 3;
  (there.to(device(0)) + here).sum().backward();
  EXPECT_TRUE(at::equal(here.grad().cpu(), at::full({16}, 7.0F)));
  here.mutable_grad() = at::Tensor();
}

TEST_F(StreamsTest, OneOperatorIsOneLaunch) {
  const at::Tensor x = at::ones({16, 16}, device());
  const auto count = [](const std::function<void()>& work) {
    const int64_t before = sim().counters(0).num_ops;
    work();
    return sim().counters(0).num_ops - before;
  };
  EXPECT_EQ(count([&] { at::mm(x, x); }), 1);
  EXPECT_EQ(count([&] { x.add(1); }), 1);
  EXPECT_EQ(count([&] { at::Tensor(x).add_(1); }), 1);
  EXPECT_EQ(count([&] { at::softmax(x, 1); }), 1);
  EXPECT_EQ(count([&] { at::linear(x, x, x[0]); }), 1);
  EXPECT_EQ(count([&] { x.clone(); }), 1);
}

TEST_F(StreamsTest, TimeOfAnOperatorFollowsItsShapes) {
  const auto time_of = [](const std::function<void()>& work) {
    sim().synchronize_device(0);
    const sim::Nanos before = sim().host_time(0);
    work();
    return sim().stream_time(0, 0) - before - 1000 - 2000;  // launch on host and stream
  };
  const at::Tensor x = at::ones({256, 512}, device());
  const at::Tensor w = at::ones({512, 128}, device());
  EXPECT_EQ(time_of([&] { at::mm(x, w); }), 2 * 256 * 512 * 128 / 1000);           // 1 TFLOP/s
  EXPECT_EQ(time_of([&] { x.add(1); }), std::llround(2 * 256 * 512 * 4 / 100.0));  // 100 GB/s
  EXPECT_EQ(time_of([&] { at::Tensor(x).add_(1); }), std::llround(2 * 256 * 512 * 4 / 100.0));
  EXPECT_EQ(time_of([&] { at::Tensor(x).zero_(); }), std::llround(256 * 512 * 4 / 100.0));
}

}  // namespace
}  // namespace swapline::testing
