#include "sim/torch/allocators.h"

#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"

#include <algorithm>
#include <new>

#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>

namespace swapline::sim {
namespace {

using c10::CachingAllocator::StatType;
constexpr auto kAggregate = static_cast<size_t>(StatType::AGGREGATE);

void free_device(void* data) {
  simulator().free(data);
}
void free_pinned(void* data) {
  simulator().free_pinned(data);
}

void fill(c10::CachingAllocator::Stat& stat, size_t current, size_t peak) {
  stat.current = static_cast<int64_t>(current);
  stat.peak = static_cast<int64_t>(peak);
}

struct SimDeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device(), bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &free_device; }
  void copy_data(void* dst, const void* src, std::size_t bytes) const override {
    const int index = current_device();
    simulator().copy(index,
                     current_stream(index),
                     {simulator().device_of(src),
                      src,
                      simulator().device_of(dst),
                      dst,
                      bytes,
                      false,
                      "copy_data"});
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override { simulator().empty_cache(current_device()); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (data.get_context() != nullptr) {
      simulator().record_stream(
          data.get_context(), stream.device_index(), static_cast<StreamId>(stream.id()));
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const DeviceMemoryStats from = simulator().memory_stats(index);
    c10::CachingDeviceAllocator::DeviceStats stats;
    fill(stats.allocated_bytes[kAggregate], from.allocated_bytes, from.peak_allocated_bytes);
    fill(stats.active_bytes[kAggregate],
         from.allocated_bytes + from.held_bytes,
         from.peak_allocated_bytes);
    fill(stats.reserved_bytes[kAggregate], from.reserved_bytes, from.peak_reserved_bytes);
    stats.num_alloc_retries = from.num_retries;
    stats.num_ooms = from.num_out_of_memory;
    stats.num_device_alloc = from.num_segments_allocated;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*index*/) override {}
  void resetPeakStats(c10::DeviceIndex index) override { simulator().reset_peak_memory(index); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const DeviceMemoryStats from = simulator().memory_stats(index);
    return {from.capacity_bytes - from.reserved_bytes, from.capacity_bytes};
  }
};

struct SimPinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::kCPU};
    }
    try {
      void* data = simulator().allocate_pinned(bytes, current_device());
      return {data, data, &free_pinned, c10::kCPU};
    } catch (const std::bad_alloc&) {
      TORCH_CHECK(false, "cannot pin ", bytes, " bytes of host memory");
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* dst, const void* src, std::size_t bytes) const override {
    default_copy_data(dst, src, bytes);
  }
  bool record_event(void* /*data*/, void* /*context*/, c10::Stream /*stream*/) override {
    return true;
  }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    const PinnedMemoryStats from = simulator().pinned_stats();
    at::HostStats stats;
    fill(stats.allocated_bytes, from.allocated_bytes, from.peak_allocated_bytes);
    stats.num_host_alloc = from.num_allocations;
    return stats;
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override { simulator().reset_peak_pinned(); }
};

SimDeviceAllocator device_memory;
SimPinnedAllocator pinned_memory;

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &device_memory)
REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &pinned_memory)

}  // namespace

c10::DeviceAllocator* device_allocator() {
  return &device_memory;
}
at::HostAllocator* pinned_allocator() {
  return &pinned_memory;
}

c10::DataPtr allocate_on(int index, size_t bytes) {
  try {
    void* data = simulator().allocate(index, current_stream(index), bytes);
    return {data, data, &free_device, device(index)};
  } catch (const OutOfMemory& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "sim: ", error.what());
  }
}

bool is_device_memory(const c10::DataPtr& data) {
  return data.get_deleter() == &free_device;
}

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  const size_t old_bytes = storage.nbytes();
  if (bytes == old_bytes) {
    return;
  }
  const int index = storage.device().index();
  c10::DataPtr fresh = allocate_on(index, bytes);
  simulator().copy(
      index,
      current_stream(index),
      {index, storage.data(), index, fresh.get(), std::min(old_bytes, bytes), false, "resize_"});
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

}  // namespace swapline::sim
