// Sizes, limits and the device's pinned allocator.
#include "swapline/memory/pinned_slabs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <iterator>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#if __has_include(<c10/core/AllocatorConfig.h>)
#include <c10/core/AllocatorConfig.h>
#endif

namespace swapline::detail {

std::string readable_bytes(size_t bytes) {
  constexpr std::array<const char*, 4> kUnits = {"B", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text.data();
}

namespace {

#if __has_include(<c10/core/AllocatorConfig.h>)
using TorchSettings = c10::CachingAllocator::AcceleratorAllocatorConfig;
#else
struct TorchSettings {};
#endif

// Above so many bytes torch's pinned allocators do not round: two settings of newer torch, which by
// default hold for no size.
template <typename Settings>
size_t most_rounded() {
  if constexpr (requires { Settings::pinned_max_round_threshold(); }) {
    return std::min(Settings::pinned_max_round_threshold(), Settings::pinned_max_cached_size());
  } else {
    return SIZE_MAX;
  }
}

}  // namespace

PinnedSlabs::PinnedSlabs(c10::Device device, HostPoolOptions options)
    : device_(device), options_(std::move(options)) {
  options_.slab_bytes = std::bit_ceil(std::max(options_.slab_bytes, kPieceAlignment));
  TORCH_CHECK(device.type() != c10::kCPU && device.type() != c10::kMeta,
              "HostPool: a device with memory of its own is needed, not ",
              device);
  allocator_ = at::globalContext().getPinnedMemoryAllocator(device.type());
  TORCH_CHECK(allocator_ != nullptr, "HostPool: ", device, " has no pinned host memory");
}

// Torch's caching host allocators keep statistics: what a small odd request adds to them tells
// whether they round at all. Without figures the answer is yes, which wastes memory at worst.
bool PinnedSlabs::rounds(size_t bytes) {
  if (!allocator_rounds_) {
    auto* caching = dynamic_cast<at::HostAllocator*>(allocator_);
    if (caching == nullptr) {
      allocator_rounds_ = false;
    } else {
      constexpr int64_t kProbeBytes = 5 * 4096;
      const int64_t before = caching->get_stats().allocated_bytes.current;
      const c10::DataPtr probe = allocator_->allocate(kProbeBytes);
      allocator_rounds_ = caching->get_stats().allocated_bytes.current - before != kProbeBytes;
    }
  }
  return *allocator_rounds_ && bytes <= most_rounded<TorchSettings>();
}

size_t PinnedSlabs::wished_bytes(size_t bytes) {
  if (bytes <= options_.slab_bytes) {
    return options_.slab_bytes;
  }
  return rounds(bytes) ? std::bit_ceil(bytes) : bytes;
}

size_t PinnedSlabs::grant(size_t least, size_t wish) const {
  size_t free_bytes = SIZE_MAX;
  std::string limit_name;
  if (options_.max_bytes != 0) {
    free_bytes = options_.max_bytes - std::min(options_.max_bytes, stats.pinned_bytes);
    limit_name = "the budget of " + readable_bytes(options_.max_bytes);
  }
  const auto system = options_.read_limit ? options_.read_limit()
                                          : tightest_host_limit(options_.device_locks_pages);
  if (system && system->free_bytes < free_bytes) {
    free_bytes = system->free_bytes;
    limit_name = system->name;
  }
  while (wish > free_bytes && wish / 2 >= least) {
    wish /= 2;
  }
  if (wish > free_bytes) {
    throw HostMemoryError("host memory: cannot pin " + readable_bytes(wish) + ", only " +
                          readable_bytes(free_bytes) + " are free under " + limit_name + "; " +
                          readable_bytes(stats.pinned_bytes) +
                          " are pinned already (option: " + options_.budget_option + ")");
  }
  return wish;
}

// What the driver refuses is asked for again by halves, down to what is needed.
c10::DataPtr PinnedSlabs::pin(size_t least, size_t& size) {
  while (true) {
    try {
      ++stats.num_pinned_allocations;
      c10::DataPtr data = allocator_->allocate(size);
      // torch_npu's returns nothing where others throw.
      TORCH_CHECK(data.get() != nullptr, "it returned no memory");
      return data;
    } catch (const std::exception& error) {
      if (size / 2 >= least) {
        size /= 2;
        continue;
      }
      const auto* with_backtrace = dynamic_cast<const c10::Error*>(&error);
      throw HostMemoryError(
          "host memory: the device's allocator refused to pin " + readable_bytes(size) + " with " +
          readable_bytes(stats.pinned_bytes) +
          " pinned already (option: " + options_.budget_option +
          "): " + (with_backtrace ? with_backtrace->what_without_backtrace() : error.what()));
    }
  }
}

std::pair<uintptr_t, size_t> PinnedSlabs::add(size_t bytes) {
  size_t size = grant(bytes, wished_bytes(bytes));
  c10::DataPtr data = pin(bytes, size);
  const auto slab = reinterpret_cast<uintptr_t>(data.get());
  slabs_.emplace(slab,
                 c10::Storage(c10::Storage::use_byte_size_t(),
                              size,
                              std::move(data),
                              allocator_,
                              /*resizable=*/false));
  sizes_.emplace(slab, size);
  stats.num_slabs = slabs_.size();
  stats.pinned_bytes += size;
  stats.peak_pinned_bytes = std::max(stats.peak_pinned_bytes, stats.pinned_bytes);
  return {slab, size};
}

void PinnedSlabs::remove(uintptr_t slab) {
  stats.pinned_bytes -= sizes_.at(slab);
  sizes_.erase(slab);
  slabs_.erase(slab);
  stats.num_slabs = slabs_.size();
}

void PinnedSlabs::abandon() noexcept {
  for (const auto& [slab, storage] : slabs_) {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    c10::DataPtr data = impl->set_data_ptr(c10::DataPtr(nullptr, impl->device()));
    data.release_context();
  }
}

void PinnedSlabs::empty_cache() {
  if (auto* caching = dynamic_cast<at::HostAllocator*>(allocator_)) {
    caching->empty_cache();
  }
}

uintptr_t PinnedSlabs::slab_of(uintptr_t data) const {
  return std::prev(sizes_.upper_bound(data))->first;
}

}  // namespace swapline::detail
