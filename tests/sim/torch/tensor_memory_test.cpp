// The memory behind tensors: resizing, setting, emptied storages, running out, statistics.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <string>

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::testing {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class TensorMemoryTest : public SimTest {
 protected:
  // Lets go of the bytes under a tensor, as an in-place swap-out does.
  static void empty_storage(const at::Tensor& tensor) {
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
    storage->set_nbytes(0);
  }
  static at::Tensor bytes_on_device(size_t bytes, int index = 0) {
    return at::empty({static_cast<int64_t>(bytes)},
                     at::TensorOptions().dtype(at::kByte).device(device(index)));
  }
  static c10::DeviceAllocator* allocator() { return at::getDeviceAllocator(at::kPrivateUse1); }
};

TEST_F(TensorMemoryTest, DeviceIsCalledSim) {
  EXPECT_EQ(c10::Device("sim:1"), device(1));
  EXPECT_EQ(at::ones({1}, device(1)).device().str(), "sim:1");
  EXPECT_EQ(at::ones({1}, c10::Device("sim")).device(), device(0))
      << "no index: the current device";
  const c10::DeviceGuard guard(device(2));
  EXPECT_EQ(at::ones({1}, c10::Device("sim")).device(), device(2));
}

TEST_F(TensorMemoryTest, UnknownDeviceIsRefusedNamingThoseThereAre) {
  const std::string text = message_of([] { at::ones({1}, device(99)); });
  EXPECT_NE(text.find("sim:0 to sim:7"), std::string::npos) << text;
}

TEST_F(TensorMemoryTest, ResizeKeepsTheBytesThereWere) {
  expect_same_as_cpu("resize_", {on_cpu({4, 3}, 1)}, [](const Tensors& in) -> Tensors {
    at::Tensor larger = in[0].clone();
    larger.resize_({10, 3});
    at::Tensor smaller = in[0].clone();
    smaller.resize_({2, 2});
    at::Tensor nothing = at::empty({0}, in[0].options());
    nothing.resize_({3, 4}).fill_(2);
    at::Tensor gone = in[0].clone();
    gone.resize_({0});
    at::Tensor like = at::empty({0}, in[0].options());
    like.resize_as_(in[0]).copy_(in[0]);
    return {larger.slice(0, 0, 4).clone(), smaller, nothing, gone, like};
  });
}

TEST_F(TensorMemoryTest, SetMakesATensorOverAnotherStorage) {
  expect_same_as_cpu("set_", {on_cpu({4, 3}, 1)}, [](const Tensors& in) -> Tensors {
    at::Tensor whole = at::empty({0}, in[0].options());
    whole.set_(in[0].storage());
    at::Tensor part = at::empty({0}, in[0].options());
    part.set_(in[0].storage(), 2, {2, 2}, {3, 1});
    at::Tensor same = at::empty({0}, in[0].options());
    same.set_(in[0]);
    at::Tensor none = in[0].clone();
    none.set_();
    in[0].add_(1);
    return {whole, part, same, none};
  });
}

TEST_F(TensorMemoryTest, SetDataMovesAParameterToTheDevice) {
  at::Tensor parameter = on_cpu({4, 3}, 1).requires_grad_();
  const at::Tensor expected = parameter.detach().clone();
  parameter.set_data(parameter.detach().to(device()));
  EXPECT_EQ(parameter.device(), device());
  EXPECT_TRUE(parameter.is_leaf());
  EXPECT_TRUE(same_bits(parameter, expected));
  (parameter * 2).sum().backward();
  EXPECT_EQ(parameter.grad().device(), device());
  parameter.mutable_grad() = at::Tensor();
  parameter.set_data(parameter.detach().cpu());
  EXPECT_TRUE(at::equal(parameter.detach(), expected));
}

TEST_F(TensorMemoryTest, OperatorOnASwappedOutTensorSaysWhichOneAndWhat) {
  at::Tensor x = on_cpu({4, 3}, 1).to(device());
  const at::Tensor other = at::ones({4, 3}, device());
  empty_storage(x);
  const std::string text = message_of([&] { x.sigmoid(); });
  for (const char* part : {"aten::sigmoid", "[4, 3]", "0 of 48 bytes", "swapped out"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  }
  EXPECT_THROW(other + x, c10::Error);
  EXPECT_THROW(x.add_(1), c10::Error);
  EXPECT_THROW(at::Tensor(other).copy_(x), c10::Error);
  EXPECT_THROW(x.cpu(), c10::Error);
  EXPECT_THROW(x.copy_(at::ones({4, 3})), c10::Error);
  EXPECT_THROW(at::mm(x, other.t()), c10::Error);
  EXPECT_THROW(x.sum().item(), c10::Error);
  EXPECT_TRUE(at::equal(other.cpu(), at::ones({4, 3}))) << "the device goes on";
}

TEST_F(TensorMemoryTest, SwappedOutTensorIsUsableAgainWhenItIsRefilled) {
  const at::Tensor expected = on_cpu({4, 3}, 1);
  const at::Tensor x = expected.to(device());
  const at::Tensor view = x.t();
  empty_storage(x);
  EXPECT_EQ(sim().memory_stats(0).allocated_bytes, 0U);
  at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(x.storage(), 48);
  EXPECT_EQ(sim().memory_stats(0).allocated_bytes, 512U);
  at::Tensor(x).copy_(expected);
  EXPECT_TRUE(same_bits(x, expected));
  EXPECT_TRUE(at::equal(view.cpu(), expected.t()));
}

TEST_F(TensorMemoryTest, FreedWhenTheLastTensorGoes) {
  at::Tensor x = bytes_on_device(4096);
  at::Tensor view = x.slice(0, 10, 20);
  x = at::Tensor();
  EXPECT_EQ(sim().memory_stats(0).allocated_bytes, 4096U);
  view = at::Tensor();
  EXPECT_EQ(sim().memory_stats(0).allocated_bytes, 0U);
}

TEST_F(TensorMemoryTest, RunningOutIsTorchsOutOfMemoryErrorAndTheDeviceGoesOn) {
  use_machine({.capacity_bytes = 64 * kMiB});
  at::Tensor held = bytes_on_device(30 * kMiB);
  try {
    bytes_on_device(40 * kMiB);
    FAIL() << "no error";
  } catch (const c10::OutOfMemoryError& error) {
    const std::string text = error.what();
    for (const char* part : {"out of memory", "used 30.00 MiB", "capacity 64.00 MiB"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
  }
  EXPECT_TRUE(at::equal((at::ones({3}, device()) + 1).cpu(), at::full({3}, 2.0F)));
  held = at::Tensor();
  bytes_on_device(40 * kMiB);
}

TEST_F(TensorMemoryTest, RunningOutInsideAnOperatorLeavesItsArgumentsAsTheyWere) {
  use_machine({.capacity_bytes = 60 * kMiB});
  const at::Tensor x = at::ones({8 << 20}, device());
  EXPECT_THROW(x + x, c10::OutOfMemoryError);
  EXPECT_TRUE(at::equal(x.cpu(), at::ones({8 << 20})));
  EXPECT_EQ(sim().memory_stats(0).allocated_bytes, 32 * kMiB);
}

TEST_F(TensorMemoryTest, StatisticsThroughTorchsAllocatorInterface) {
  ASSERT_NE(allocator(), nullptr);
  const at::Tensor x = bytes_on_device(3 * kMiB);
  bytes_on_device(4 * kMiB);
  auto stats = allocator()->getDeviceStats(0);
  EXPECT_EQ(stats.allocated_bytes[0].current, static_cast<int64_t>(3 * kMiB));
  EXPECT_EQ(stats.allocated_bytes[0].peak, static_cast<int64_t>(7 * kMiB));
  EXPECT_EQ(stats.reserved_bytes[0].current, static_cast<int64_t>(20 * kMiB));
  allocator()->resetPeakStats(0);
  stats = allocator()->getDeviceStats(0);
  EXPECT_EQ(stats.allocated_bytes[0].peak, static_cast<int64_t>(3 * kMiB));
  const auto [free, total] = allocator()->getMemoryInfo(0);
  EXPECT_EQ(total, 256 * kMiB);
  EXPECT_EQ(free, 236 * kMiB);
  EXPECT_EQ(allocator()->getDeviceStats(1).allocated_bytes[0].current, 0);
}

TEST_F(TensorMemoryTest, EmptyCacheThroughTorchsAllocatorInterface) {
  bytes_on_device(3 * kMiB);
  EXPECT_EQ(sim().memory_stats(0).reserved_bytes, 20 * kMiB);
  allocator()->emptyCache();
  EXPECT_EQ(sim().memory_stats(0).reserved_bytes, 0U);
}

TEST_F(TensorMemoryTest, KindsOfMemory) {
  const at::Tensor x = bytes_on_device(2 * kMiB);
  sim::set_memory_kind(x.storage(), sim::MemoryKind::kOptimizerStates);
  sim::set_memory_kind(at::ones({2}).storage(), sim::MemoryKind::kParameters);
  const auto& bytes = sim().memory_stats(0).bytes_by_kind;
  EXPECT_EQ(bytes[static_cast<size_t>(sim::MemoryKind::kOptimizerStates)], 2 * kMiB);
  EXPECT_EQ(bytes[static_cast<size_t>(sim::MemoryKind::kParameters)], 0U);
}

TEST_F(TensorMemoryTest, MachineIsNotReplacedWhileSomethingIsHeld) {
  const at::Tensor x = at::ones({3}, device());
  const std::string text = message_of([this] { use_machine(); });
  EXPECT_NE(text.find("512 bytes"), std::string::npos) << text;
  EXPECT_TRUE(at::equal(x.cpu(), at::ones({3}))) << "nothing changed";
}

TEST_F(TensorMemoryTest, RecordStreamKeepsTheBlockForTheOtherStream) {
  const c10::impl::VirtualGuardImpl guard(at::kPrivateUse1);
  const c10::Stream side = guard.getNewStream(device());
  at::Tensor x = bytes_on_device(4096);
  {
    const c10::StreamGuard on_side(side);
    keep_busy(3);
  }
  x.record_stream(side);
  x = at::Tensor();
  EXPECT_EQ(sim().memory_stats(0).held_bytes, 4096U);
  side.synchronize();
  bytes_on_device(1);
  EXPECT_EQ(sim().memory_stats(0).held_bytes, 0U);
}

TEST_F(TensorMemoryTest, InjectedAllocationFailureIsAnOutOfMemoryError) {
  sim::Faults faults;
  faults.fail_device_allocation = 1;
  set_faults(faults);
  const at::Tensor x = at::ones({3}, device());
  EXPECT_THROW(x + 1, c10::OutOfMemoryError);
  EXPECT_TRUE(at::equal((x + 1).cpu(), at::full({3}, 2.0F)));
}

TEST_F(TensorMemoryTest, SparseAndPinnedDeviceTensorsAreRefused) {
  EXPECT_THROW(at::empty({2}, at::TensorOptions().device(device()).pinned_memory(true)),
               c10::Error);
  EXPECT_THROW(at::empty({2}, at::TensorOptions().device(device()).layout(at::kSparse)),
               c10::Error);
}

}  // namespace
}  // namespace swapline::testing
