// Copies between host and device, between devices, across dtypes and layouts, pinned and not.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <c10/core/Event.h>

namespace swapline::testing {
namespace {

class CopiesTest : public SimTest {
 protected:
  static at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::empty(sizes, at::TensorOptions().dtype(dtype).pinned_memory(true));
  }
};

struct Layout {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> view;  // of a [6, 8] tensor
};

const std::vector<Layout> kLayouts = {
    {"contiguous",
     [](const at::Tensor& x) { return x.slice(0, 0, 4).slice(1, 0, 6).contiguous(); }},
    {"transposed", [](const at::Tensor& x) { return x.t().slice(0, 0, 4).slice(1, 0, 6); }},
    {"sliced", [](const at::Tensor& x) { return x.slice(0, 1, 5).slice(1, 1, 7); }},
    {"stepped", [](const at::Tensor& x) { return x.view({12, 4}).t().slice(1, 0, 12, 2); }},
    {"dense transposed",
     [](const at::Tensor& x) { return x.slice(0, 0, 4).slice(1, 0, 6).t().contiguous().t(); }},
};

TEST_F(CopiesTest, EveryLayoutArrivesInEveryOther) {
  const at::Tensor source = on_cpu({6, 8}, 1);
  for (const Layout& from : kLayouts) {
    for (const Layout& to : kLayouts) {
      SCOPED_TRACE(std::string(from.name) + " to " + to.name);
      const at::Tensor expected_base = at::zeros({6, 8});
      const at::Tensor base = at::zeros({6, 8}, device());
      const at::Tensor base_on_cpu = at::zeros({6, 8});
      to.view(expected_base).copy_(from.view(source));
      to.view(base).copy_(from.view(source));  // in
      EXPECT_TRUE(at::equal(base.cpu(), expected_base));
      to.view(base.zero_()).copy_(from.view(source.to(device())));  // on the device
      EXPECT_TRUE(at::equal(base.cpu(), expected_base));
      to.view(base_on_cpu).copy_(from.view(source.to(device())));  // out
      EXPECT_TRUE(at::equal(base_on_cpu, expected_base));
    }
  }
}

TEST_F(CopiesTest, EveryDtypeArrivesAsEveryOther) {
  const std::vector<at::ScalarType> dtypes = {
      at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte, at::kBool};
  for (const at::ScalarType from : dtypes) {
    for (const at::ScalarType to : dtypes) {
      SCOPED_TRACE(std::string(c10::toString(from)) + " to " + c10::toString(to));
      const at::Tensor x = (on_cpu({5, 3}, 1).abs() * 10).to(from);
      const at::Tensor expected = x.to(to);
      EXPECT_TRUE(at::equal(x.to(device(), to).cpu(), expected));
      EXPECT_TRUE(at::equal(x.to(device()).to(at::kCPU, to), expected));
      EXPECT_TRUE(at::equal(x.to(device()).to(to).cpu(), expected));
      at::Tensor into = at::zeros({5, 3}, at::TensorOptions().dtype(to).device(device()));
      EXPECT_TRUE(at::equal(into.copy_(x).cpu(), expected));
    }
  }
}

TEST_F(CopiesTest, ExpandedBroadcastAndScalarSources) {
  const at::Tensor row = on_cpu({4}, 1);
  at::Tensor into = at::zeros({3, 4}, device());
  into.copy_(row);
  EXPECT_TRUE(at::equal(into.cpu(), row.expand({3, 4})));
  EXPECT_TRUE(at::equal(row.expand({3, 4}).to(device()).cpu(), row.expand({3, 4})));
  EXPECT_TRUE(at::equal(row.to(device()).expand({3, 4}).cpu(), row.expand({3, 4})));
  into.copy_(at::scalar_tensor(3));
  EXPECT_TRUE(at::equal(into.cpu(), at::full({3, 4}, 3.0F)));
  at::Tensor on_host = at::zeros({3, 4});
  on_host.copy_(row.to(device()));
  EXPECT_TRUE(at::equal(on_host, row.expand({3, 4})));
}

TEST_F(CopiesTest, ConjugatedAndNegatedViews) {
  const at::Tensor z = at::complex(on_cpu({3, 4}, 1), on_cpu({3, 4}, 2));
  EXPECT_TRUE(at::equal(z.conj().to(device()).cpu(), z.conj().resolve_conj()));
  EXPECT_TRUE(at::equal(z.to(device()).conj().cpu(), z.conj().resolve_conj()));
  EXPECT_TRUE(at::equal(at::imag(z.to(device()).conj()).cpu(), -at::imag(z)));
  at::Tensor into = at::zeros({3, 4}, z.options().device(device()));
  into.conj().copy_(z);
  EXPECT_TRUE(at::equal(into.cpu(), z.conj().resolve_conj()));
}

TEST_F(CopiesTest, ChannelsLastIsKept) {
  const at::Tensor x = on_cpu({2, 3, 4, 5}, 1).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor there = x.to(device());
  EXPECT_EQ(there.strides(), x.strides());
  EXPECT_EQ(there.cpu().strides(), x.strides());
  EXPECT_TRUE(at::equal(there.cpu(), x));
}

TEST_F(CopiesTest, EmptyTensors) {
  EXPECT_EQ(at::empty({0, 3}).to(device()).cpu().sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(sim().counters(0).num_copies_in, 0);
}

TEST_F(CopiesTest, DeviceToDevice) {
  const at::Tensor x = on_cpu({5, 7}, 1);
  const at::Tensor here = x.to(device(0));
  const at::Tensor there = here.to(device(1));
  EXPECT_EQ(there.device(), device(1));
  const at::Tensor doubled = there * 2;  // needs no wait of the user's
  EXPECT_TRUE(at::equal(doubled.cpu(), x * 2));
  at::Tensor into = at::zeros({7, 5}, at::TensorOptions().device(device(1)).dtype(at::kDouble));
  into.t().copy_(here);
  EXPECT_TRUE(at::equal(into.cpu(), x.t().to(at::kDouble)));
  EXPECT_TRUE(at::equal(into.to(device(0)).cpu(), x.t().to(at::kDouble)));
}

TEST_F(CopiesTest, PeerCopyIsOrderedOnBothDevices) {
  at::Tensor here = on_cpu({500, 500}, 1).to(device(0));
  at::Tensor there = at::zeros({500, 500}, device(1));
  for (int i = 0; i < 3; ++i) {
    here = at::mm(here, here).mul_(1e-3);
    there.add_(1);
    there.copy_(here, /*non_blocking=*/true);  // over what there is in use, from what is being made
    here.zero_();
    here.add_(there.to(device(0)));
  }
  EXPECT_TRUE(at::equal(here.cpu(), there.cpu()));
}

TEST_F(CopiesTest, PlainCopyMovesExactlyItsBytesInOneCopy) {
  const at::Tensor x = on_cpu({100}, 1);
  const at::Tensor there = x.to(device());
  EXPECT_EQ(sim().counters(0).num_copies_in, 1);
  EXPECT_EQ(sim().counters(0).bytes_in, 400);
  there.cpu();
  EXPECT_EQ(sim().counters(0).num_copies_out, 1);
  EXPECT_EQ(sim().counters(0).bytes_out, 400);
}

TEST_F(CopiesTest, PinnedTensorsAreKnownByTheirAddress) {
  const at::Tensor buffer = pinned({64});
  EXPECT_TRUE(buffer.is_pinned());
  EXPECT_TRUE(buffer.slice(0, 3, 5).is_pinned());
  EXPECT_TRUE(at::from_blob(buffer.data_ptr<float>() + 8, {8}).is_pinned());
  EXPECT_FALSE(at::zeros({4}).is_pinned());
  const at::Tensor copy = at::arange(5).pin_memory();
  EXPECT_TRUE(copy.is_pinned());
  EXPECT_TRUE(at::equal(copy, at::arange(5)));
  EXPECT_EQ(sim().pinned_stats().allocated_bytes, 64U * 4U + 5U * 8U);
}

TEST_F(CopiesTest, NonBlockingCopyWithPinnedMemoryLeavesTheHostFree) {
  const at::Tensor buffer = pinned({1 << 20});
  buffer.fill_(2);
  at::Tensor there = at::empty({1 << 20}, device());
  const sim::Nanos before = sim().host_time(0);
  there.copy_(buffer, /*non_blocking=*/true);
  EXPECT_LT(sim().host_time(0) - before, 100'000);
  EXPECT_GT(sim().stream_time(0, 0) - before, 400'000);
  c10::Event done(c10::DeviceType::PrivateUse1);
  done.record(c10::Stream(c10::Stream::DEFAULT, device()));
  EXPECT_FALSE(done.query());
  done.synchronize();
  EXPECT_TRUE(done.query());
  EXPECT_TRUE(at::equal(there.cpu(), buffer));
}

TEST_F(CopiesTest, BlockingAndPageableCopiesHoldTheHost) {
  const at::Tensor buffer = pinned({1 << 20}).fill_(1);
  at::Tensor there = at::empty({1 << 20}, device());
  there.copy_(buffer, /*non_blocking=*/false);
  EXPECT_EQ(sim().host_time(0), sim().stream_time(0, 0));
  there.copy_(at::zeros({1 << 20}), /*non_blocking=*/true);
  EXPECT_EQ(sim().host_time(0), sim().stream_time(0, 0));
}

TEST_F(CopiesTest, FailedCopyIsACleanError) {
  const at::Tensor x = at::ones({10});
  const at::Tensor there = x.to(device());
  sim::Faults faults;
  faults.fail_copy = 0;
  set_faults(faults);
  EXPECT_THROW(x.to(device()), c10::Error);
  set_faults(faults);
  const std::string text = message_of([&] { there.cpu(); });
  EXPECT_NE(text.find("copy of 40 bytes from device 0 failed"), std::string::npos) << text;
  EXPECT_TRUE(at::equal(there.cpu(), x));
}

TEST_F(CopiesTest, FailedPinIsACleanError) {
  sim::Faults faults;
  faults.fail_pinned_allocation = 0;
  set_faults(faults);
  const std::string text = message_of([&] { pinned({10}); });
  EXPECT_NE(text.find("cannot pin 40 bytes of host memory"), std::string::npos) << text;
  EXPECT_TRUE(pinned({10}).is_pinned());
}

}  // namespace
}  // namespace swapline::testing
