// Device and pinned memory of the simulated machine.
#include "sim/core/simulator.h"
#include "sim/core/simulator_impl.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <new>

namespace swapline::sim {
namespace {

std::string mebibytes(size_t bytes) {
  char text[40];
  std::snprintf(text, sizeof text, "%.2f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

uintptr_t address_of(const void* data) {
  return reinterpret_cast<uintptr_t>(data);
}

}  // namespace

CachingAllocator& Simulator::Impl::memory(int index) {
  Device& owner = device(index);
  if (owner.memory == nullptr) {
    const size_t capacity =
        options.capacity_bytes != 0 ? options.capacity_bytes : options.spec.memory_bytes;
    owner.memory = std::make_unique<CachingAllocator>(capacity, !options.dry_run);
  }
  return *owner.memory;
}

CachingAllocator* Simulator::Impl::find_memory(uintptr_t address, int* device_index) {
  for (size_t index = 0; index < devices.size(); ++index) {
    CachingAllocator* memory = devices[index].memory.get();
    if (memory != nullptr && memory->contains(address)) {
      if (device_index != nullptr) {
        *device_index = static_cast<int>(index);
      }
      return memory;
    }
  }
  return nullptr;
}

void Simulator::Impl::free_now(int index, uintptr_t begin) {
  CachingAllocator& owner = memory(index);
  const auto block = owner.describe(begin);
  if (options.late_copies && !options.dry_run) {
    // Memory is freed in the order of its stream: what that stream waited for has happened.
    late.demand(stream(index, block.stream).clock);
    poison(reinterpret_cast<void*>(begin), block.bytes);
  }
  owner.free(begin);
}

void Simulator::Impl::release_held(int index) {
  std::erase_if(device(index).held, [&](const HeldBlock& block) {
    for (const auto& use : block.uses) {
      if (use->time > device(use->device).host) {
        return false;
      }
    }
    for (const auto& use : block.uses) {
      host_learns(use->clock);
    }
    free_now(index, block.begin);
    return true;
  });
}

void Simulator::Impl::sample_memory(int index, StreamId id) {
  if (options.trace) {
    const Nanos at = std::max(stream(index, id).time, device(index).host);
    trace.memory(index, at, memory(index).stats().bytes_by_kind);
  }
}

void* Simulator::allocate(int device, StreamId stream, size_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  if (bytes == 0) {
    return nullptr;
  }
  CachingAllocator& memory = impl_->memory(device);
  impl_->release_held(device);
  CachingAllocator::Allocation got;
  const bool fails = impl_->is_faulty(impl_->options.faults.fail_device_allocation);
  if (!fails) {
    got = memory.allocate(bytes, stream);
  }
  if (got.begin == 0 && !fails) {
    ++memory.stats().num_retries;
    impl_->wait_for_device(device);
    impl_->release_held(device);
    for (const auto& range : memory.flush_cache()) {
      impl_->accesses.forget(range.begin, range.begin + range.bytes);
    }
    got = memory.allocate(bytes, stream);
  }
  if (got.begin == 0) {
    DeviceMemoryStats& stats = memory.stats();
    ++stats.num_out_of_memory;
    throw OutOfMemory("device " + std::to_string(device) + " is out of memory" +
                      (fails ? " (injected fault)" : "") + ": tried to allocate " +
                      mebibytes(bytes) + "; used " + mebibytes(stats.allocated_bytes) +
                      ", reserved " + mebibytes(stats.reserved_bytes) + ", capacity " +
                      mebibytes(stats.capacity_bytes));
  }
  if (got.is_new_segment) {
    impl_->host_spends(device, "allocate segment", impl_->options.spec.device_allocation_time);
  }
  impl_->sample_memory(device, stream);
  return reinterpret_cast<void*>(got.begin);
}

void Simulator::free(void* data) {
  if (data == nullptr) {
    return;
  }
  const std::lock_guard lock(impl_->mutex);
  int device = 0;
  CachingAllocator* memory = impl_->find_memory(address_of(data), &device);
  if (memory == nullptr) {
    throw std::invalid_argument("free of memory that is not on a simulated device");
  }
  const uintptr_t begin = address_of(data);
  const StreamId stream = memory->describe(begin).stream;
  const auto recorded = impl_->recorded_streams.find(begin);
  if (recorded == impl_->recorded_streams.end()) {
    impl_->free_now(device, begin);
  } else {
    HeldBlock held{begin, {}};
    for (const auto& [use_device, use_stream] : recorded->second) {
      held.uses.push_back(impl_->record(use_device, use_stream));
    }
    impl_->recorded_streams.erase(recorded);
    memory->hold(begin);
    impl_->device(device).held.push_back(std::move(held));
  }
  impl_->sample_memory(device, stream);
}

void Simulator::record_stream(void* data, int device, StreamId stream) {
  const std::lock_guard lock(impl_->mutex);
  int owner = 0;
  CachingAllocator* memory = impl_->find_memory(address_of(data), &owner);
  if (memory == nullptr) {
    return;
  }
  const StreamId own = memory->describe(address_of(data)).stream;
  if (owner != device || own != stream) {
    impl_->recorded_streams[address_of(data)].insert({device, stream});
  }
}

void Simulator::empty_cache(int device) {
  const std::lock_guard lock(impl_->mutex);
  impl_->wait_for_device(device);
  impl_->release_held(device);
  for (const auto& range : impl_->memory(device).flush_cache()) {
    impl_->accesses.forget(range.begin, range.begin + range.bytes);
  }
}

void Simulator::set_memory_kind(const void* data, MemoryKind kind) {
  const std::lock_guard lock(impl_->mutex);
  CachingAllocator* memory = impl_->find_memory(address_of(data));
  if (memory != nullptr) {
    memory->set_kind(address_of(data), kind);
  }
}

void Simulator::take_away(int device, size_t bytes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->memory(device).take_away(bytes);
}

DeviceMemoryStats Simulator::memory_stats(int device) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->memory(device).stats();
}

void Simulator::reset_peak_memory(int device) {
  const std::lock_guard lock(impl_->mutex);
  impl_->memory(device).reset_peaks();
}

int Simulator::device_of(const void* data) const {
  const std::lock_guard lock(impl_->mutex);
  int device = kHost;
  return impl_->find_memory(address_of(data), &device) != nullptr ? device : kHost;
}

void* Simulator::allocate_pinned(size_t bytes, int device) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->is_faulty(impl_->options.faults.fail_pinned_allocation)) {
    throw std::bad_alloc();
  }
  void* data = impl_->pinned.allocate(bytes);
  const DeviceSpec& spec = impl_->options.spec;
  impl_->host_spends(device,
                     "pin memory",
                     spec.pinned_allocation_time +
                         std::llround(static_cast<double>(bytes) / spec.pinned_bytes_per_s * 1e9));
  return data;
}

void Simulator::free_pinned(void* data) {
  const std::lock_guard lock(impl_->mutex);
  const auto begin = address_of(data);
  const size_t bytes = impl_->pinned.bytes_of(data);
  impl_->check_mapped(begin);
  impl_->late.demand_touching(begin, begin + bytes);
  impl_->accesses.forget(begin, begin + bytes);
  impl_->pinned.free(data);
}

bool Simulator::is_pinned(const void* data, size_t bytes) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->pinned.contains(data, bytes);
}

PinnedMemoryStats Simulator::pinned_stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->pinned.stats();
}

void Simulator::reset_peak_pinned() {
  const std::lock_guard lock(impl_->mutex);
  impl_->pinned.reset_peak();
}

size_t Simulator::live_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  size_t bytes = impl_->pinned.stats().allocated_bytes;
  for (const Device& device : impl_->devices) {
    if (device.memory != nullptr) {
      bytes += device.memory->stats().allocated_bytes;
    }
  }
  return bytes;
}

}  // namespace swapline::sim
