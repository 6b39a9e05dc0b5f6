// Device tensors over pinned host memory: the numbers are the CPU's, the bytes travel over the
// link inside the operator, and none of them are the device's.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <string>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::testing {
namespace {

using sim::Nanos;

constexpr int64_t kElements = 250'000;  // a million bytes of float

class MappedTensorsTest : public SimTest {
 protected:
  static at::Tensor pinned(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::empty(sizes, at::TensorOptions().dtype(dtype).pinned_memory(true));
  }
  // The same bytes as a tensor of the device; keeps `host` alive.
  static at::Tensor mapped(const at::Tensor& host, int index = 0) {
    return at::from_blob(
        host.mutable_data_ptr(),
        host.sizes(),
        host.strides(),
        [host](void*) {},
        host.options().device(device(index)).pinned_memory(std::nullopt),
        device(index));
  }
  // A mapped tensor with the values of `values`, which are on the CPU.
  static at::Tensor mapped_copy(const at::Tensor& values) {
    const at::Tensor host =
        at::empty_strided(values.sizes(), values.strides(), values.options().pinned_memory(true));
    host.copy_(values);
    return mapped(host);
  }
  struct Spent {
    Nanos time = 0;
    int64_t in = 0;
    int64_t out = 0;
  };
  // What `work` adds to compute: stream time and mapped bytes.
  template <typename Work>
  static Spent spent_by(const Work& work) {
    sim().synchronize_device(0);
    const sim::Counters before = sim().counters(0);
    const Nanos start = sim().host_time(0);
    work();
    const sim::Counters after = sim().counters(0);
    return {sim().stream_time(0, 0) - start,
            after.mapped_bytes_in - before.mapped_bytes_in,
            after.mapped_bytes_out - before.mapped_bytes_out};
  }
};

TEST_F(MappedTensorsTest, OperatorsGiveTheNumbersOfTheCpu) {
  const at::Tensor x = on_cpu({6, 8}, 1);
  const at::Tensor y = on_cpu({6, 8}, 2);
  const at::Tensor here = mapped_copy(x);
  const at::Tensor there = y.to(device());
  EXPECT_EQ(here.device(), device());
  EXPECT_TRUE(at::equal((here + there).cpu(), x + y));
  EXPECT_TRUE(at::equal(at::mm(here.t(), there).cpu(), at::mm(x.t(), y)));
  EXPECT_TRUE(at::equal(here.slice(1, 1, 7).sum(0).cpu(), x.slice(1, 1, 7).sum(0)));
  EXPECT_TRUE(at::equal(here.cpu(), x));
  EXPECT_EQ(here.sum().item<float>(), x.sum().item<float>());
}

TEST_F(MappedTensorsTest, WritesGoIntoTheHostMemory) {
  const at::Tensor host = pinned({6, 8});
  at::Tensor there = mapped(host);
  const at::Tensor values = on_cpu({6, 8}, 1);
  const auto settled = [&] {
    sim().synchronize_device(0);
    return host;
  };
  there.copy_(values.to(device()));
  EXPECT_TRUE(at::equal(settled(), values));
  there.mul(2);
  EXPECT_TRUE(at::equal(settled(), values));
  there.mul_(2);
  EXPECT_TRUE(at::equal(settled(), values * 2));
  there.t().slice(0, 0, 4).zero_();
  EXPECT_EQ(settled().slice(1, 0, 4).abs().sum().item<float>(), 0);
  there.copy_(values);
  EXPECT_TRUE(at::equal(settled(), values)) << "from the host, by a copy";
  at::add_out(there, there, there);
  EXPECT_TRUE(at::equal(settled(), values * 2));
}

TEST_F(MappedTensorsTest, FusedAdamUpdatesThemInPlace) {
  const Tensors start = {
      on_cpu({1000}, 1), on_cpu({1000}, 2), at::zeros({1000}), at::zeros({1000})};
  const auto update = [](Tensors& in, const at::Tensor& step) {
    at::_fused_adamw_(
        {in[0]}, {in[1]}, {in[2]}, {in[3]}, {}, {step}, 1e-3, 0.9, 0.99, 0.1, 1e-8, false, false);
  };
  Tensors expected;
  Tensors got;
  for (size_t i = 0; i < start.size(); ++i) {
    expected.push_back(start[i].clone());
    got.push_back(i < 2 ? start[i].to(device()) : mapped_copy(start[i]));
  }
  update(expected, at::ones({}));
  const at::Tensor step = at::ones({}, device());
  const Spent spent = spent_by([&] { update(got, step); });
  for (size_t i = 0; i < start.size(); ++i) {
    EXPECT_TRUE(at::equal(got[i].cpu(), expected[i])) << i;
  }
  EXPECT_EQ(spent.in, 2 * 4000);
  EXPECT_EQ(spent.out, 2 * 4000);
}

TEST_F(MappedTensorsTest, BytesTakeTheirTimeOnTheLink) {
  const at::Tensor x = mapped_copy(at::ones({kElements}));
  const at::Tensor y = at::ones({kElements}, device());
  at::Tensor sum = at::empty({kElements}, device());
  const Nanos overhead = 1000 + 2000;  // preset tiny: host and launch
  const Nanos transfer = 100'000;      // 10 bytes a nanosecond
  const Spent read = spent_by([&] { at::add_out(sum, x, y); });
  EXPECT_EQ(read.time, overhead + transfer);
  EXPECT_EQ(read.in, 4 * kElements);
  EXPECT_EQ(read.out, 0);
  const Spent both = spent_by([&] { at::Tensor(x).add_(y); });
  EXPECT_EQ(both.time, overhead + transfer) << "reads and writes at once";
  EXPECT_EQ(both.in, 4 * kElements);
  EXPECT_EQ(both.out, 4 * kElements);
  const Spent written = spent_by([&] { at::Tensor(x).zero_(); });
  EXPECT_EQ(written.time, overhead + transfer);
  EXPECT_EQ(written.in, 0);
  EXPECT_EQ(written.out, 4 * kElements);
  const Spent shape = spent_by([&] { x.view({-1, 2}).t(); });
  EXPECT_EQ(shape.time, 0);
  EXPECT_EQ(shape.in + shape.out, 0);
}

TEST_F(MappedTensorsTest, GatherReadsOnlyTheRowsItTakes) {
  const at::Tensor table = mapped_copy(on_cpu({1000, 16}, 1));
  const at::Tensor rows = ints_on_cpu({10}, 1000, 2).to(device());
  const Spent spent = spent_by([&] { at::index_select(table, 0, rows); });
  EXPECT_EQ(spent.in, 10 * 16 * 4);
  sim().synchronize_device(0);
}

TEST_F(MappedTensorsTest, BytesAreNotTheDevices) {
  const at::Tensor host = pinned({kElements});
  at::Tensor there = mapped(host);
  there.zero_().add_(1);
  EXPECT_EQ(sim().memory_stats(0).peak_allocated_bytes, 0U);
  EXPECT_EQ(sim().memory_stats(0).peak_reserved_bytes, 0U);
  EXPECT_EQ(sim().pinned_stats().allocated_bytes, 4U * kElements);
  sim().synchronize_device(0);
}

TEST_F(MappedTensorsTest, EveryDeviceAddressesThem) {
  const at::Tensor host = pinned({8}).fill_(1);
  const at::Tensor first = mapped(host, 0);
  const at::Tensor second = mapped(host, 1);
  at::Tensor(first).add_(1);
  sim().synchronize_device(0);
  at::Tensor(second).add_(1);
  sim().synchronize_device(1);
  EXPECT_TRUE(at::equal(host, at::full({8}, 3.0F)));
  EXPECT_EQ(sim().counters(1).mapped_bytes_in, 32);
}

TEST_F(MappedTensorsTest, DeviceOfAnAddressIsTheCurrentOne) {
  const at::Tensor host = pinned({8}).fill_(1);
  const at::Tensor there = at::from_blob(
      host.mutable_data_ptr(), {8}, [](void*) {}, at::TensorOptions().device(device()));
  EXPECT_EQ(there.device(), device());
  const std::string text = message_of([] {
    float on_stack = 0;
    at::from_blob(&on_stack, {1}, [](void*) {}, at::TensorOptions().device(device()));
  });
  EXPECT_NE(text.find("nor in its pinned memory"), std::string::npos) << text;
}

TEST_F(MappedTensorsTest, PlainHostMemoryUnderADeviceTensorIsRefused) {
  const at::Tensor pageable = at::ones({4, 3});
  at::Tensor there = mapped(pageable);
  const at::Tensor other = at::ones({4, 3}, device());
  const std::string text = message_of([&] { there.sigmoid(); });
  for (const char* part : {"aten::sigmoid reads", "[4, 3]", "sim:0", "nor pinned"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_THROW(there.add_(1), c10::Error);
  EXPECT_THROW(other + there, c10::Error);
  EXPECT_THROW(there.cpu(), c10::Error);
  EXPECT_THROW(there.copy_(pageable), c10::Error);
  EXPECT_TRUE(at::equal(pageable, at::ones({4, 3})));
  EXPECT_EQ((other + other).sum().item<float>(), 24) << "the device goes on";
}

TEST_F(MappedTensorsTest, TensorBeyondThePinnedBlockIsRefused) {
  const at::Tensor host = pinned({8});
  const at::Tensor there = at::from_blob(
      host.mutable_data_ptr(), {9}, [](void*) {}, at::TensorOptions().device(device()));
  EXPECT_THROW(at::Tensor(there).zero_(), c10::Error);
}

TEST_F(MappedTensorsTest, UseAfterTheMemoryWasFreedIsRefused) {
  at::Tensor host = pinned({8});
  const at::Tensor there = at::from_blob(
      host.mutable_data_ptr(), {8}, [](void*) {}, at::TensorOptions().device(device()));
  host.reset();
  const std::string text = message_of([&] { at::Tensor(there).zero_(); });
  EXPECT_NE(text.find("nor pinned"), std::string::npos) << text;
}

TEST_F(MappedTensorsTest, MemoryFreedUnderARunningOperatorIsARace) {
  expect_races();
  at::Tensor host = pinned({8});
  const at::Tensor there = at::from_blob(
      host.mutable_data_ptr(), {8}, [](void*) {}, at::TensorOptions().device(device()));
  at::Tensor(there).zero_();
  host.reset();
  ASSERT_EQ(sim().num_races(), 1);
  EXPECT_EQ(sim().races()[0].first.op, "aten::zero_");
}

TEST_F(MappedTensorsTest, UnorderedCopyOfTheSameBytesIsARace) {
  const at::Tensor host = pinned({kElements}).fill_(1);
  at::Tensor there = mapped(host);
  at::Tensor landed = at::empty({kElements}, device());
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
  const c10::Stream side = guard.getNewStream(device());
  there.add_(1);
  {
    const c10::StreamGuard on_side(side);
    landed.copy_(host, /*non_blocking=*/true);
  }
  ASSERT_EQ(sim().num_races(), 1);
  EXPECT_EQ(sim().races()[0].first.op, "aten::add_");
  EXPECT_EQ(sim().races()[0].second.op, "copy in");
  EXPECT_TRUE(sim().races()[0].is_host_memory);
  sim().clear_races();
  sim().synchronize_device(0);
  landed.copy_(host, /*non_blocking=*/true);
  EXPECT_EQ(sim().num_races(), 0);
  sim().synchronize_device(0);
}

TEST_F(MappedTensorsTest, CopyThatIsLateIsSeenByTheOperatorBehindIt) {
  use_machine({.late_copies = true});
  const at::Tensor values = on_cpu({100}, 1).to(device());
  const at::Tensor host = pinned({100});
  at::Tensor there = mapped(host);
  host.copy_(values, /*non_blocking=*/true);
  there.mul_(2);
  sim().synchronize_device(0);
  EXPECT_TRUE(at::equal(host, (values * 2).cpu()));
}

TEST_F(MappedTensorsTest, DryRunCostsWhatTheRealRunCosts) {
  const auto run = [&](bool is_dry) {
    sim::SimulatorOptions options = machine();
    options.dry_run = is_dry;
    sim::configure(options);
    const at::Tensor host = pinned({kElements});
    at::Tensor there = mapped(host);
    const at::Tensor other = at::ones({kElements}, device());
    const Spent spent = spent_by([&] {
      there.zero_();
      there.add_(other);
      at::mul(there, other).sum();
    });
    sim().synchronize_device(0);
    return std::vector<int64_t>{spent.time, spent.in, spent.out, sim().host_time(0)};
  };
  const auto real = run(false);
  EXPECT_GT(real[1], 0);
  EXPECT_EQ(run(true), real);
}

}  // namespace
}  // namespace swapline::testing
