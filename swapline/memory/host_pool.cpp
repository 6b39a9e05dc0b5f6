// HostPool: free pieces over pinned slabs, behind one lock.
#include "swapline/memory/host_pool.h"

#include "swapline/memory/free_pieces.h"
#include "swapline/memory/pinned_slabs.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace swapline {

using detail::align_piece;
using detail::Piece;

struct HostPool::Impl {
  Impl(c10::Device device, HostPoolOptions options) : slabs(device, std::move(options)) {}

  Piece take_or_pin(size_t bytes) {
    if (auto piece = free.take(bytes)) {
      return std::move(*piece);
    }
    const auto [slab, size] = slabs.add(bytes);
    free.add({slab, size, slab, {}});
    return *free.take(bytes);
  }

  // A failure on the way hands the parts back.
  std::vector<Piece> take_parts(size_t bytes) {
    if (auto piece = free.take(bytes)) {
      return {std::move(*piece)};
    }
    const size_t least = std::max(slabs.slab_bytes() / 128, detail::kPieceAlignment);
    std::vector<Piece> parts;
    try {
      while (bytes > 0) {
        auto part = free.take_largest(std::min(least, bytes), bytes);
        parts.push_back(part ? std::move(*part) : take_or_pin(std::min(bytes, slabs.slab_bytes())));
        bytes -= parts.back().bytes;
      }
    } catch (...) {
      for (Piece& part : parts) {
        free.add(std::move(part));
      }
      throw;
    }
    return parts;
  }

  // Those that are wholly free, after their uses are done.
  void remove_free_slabs() {
    for (const Piece& slab : free.take_whole_slabs(slabs.sizes())) {
      for (const SharedEvent& use : slab.uses) {
        use->synchronize();
      }
      slabs.remove(slab.begin);
    }
  }

  void note_request(size_t bytes) {
    HostPoolStats& stats = slabs.stats;
    stats.requested_bytes += bytes;
    stats.peak_requested_bytes = std::max(stats.peak_requested_bytes, stats.requested_bytes);
  }

  // Counts a failure on its way out.
  template <typename F>
  auto counted(const F& request) {
    try {
      return request();
    } catch (const HostMemoryError&) {
      ++slabs.stats.num_failures;
      throw;
    }
  }

  mutable std::mutex mutex;
  detail::PinnedSlabs slabs;
  detail::FreePieces free;
};

HostPool::HostPool(c10::Device device, HostPoolOptions options)
    : impl_(std::make_unique<Impl>(device, std::move(options))) {}

HostPool::~HostPool() {
  try {
    if (takes_calls(impl_->slabs.device())) {
      impl_->remove_free_slabs();
      impl_->slabs.empty_cache();
      return;
    }
  } catch (...) {  // It failed meanwhile.
  }
  impl_->slabs.abandon();
}

c10::Device HostPool::device() const {
  return impl_->slabs.device();
}

HostPoolStats HostPool::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->slabs.stats;
}

PinnedBuffer HostPool::allocate(size_t bytes) {
  TORCH_CHECK(bytes > 0, "HostPool: a buffer of 0 bytes was asked for");
  const std::lock_guard lock(impl_->mutex);
  Piece piece = impl_->counted([&] { return impl_->take_or_pin(align_piece(bytes)); });
  impl_->note_request(bytes);
  return {this, reinterpret_cast<void*>(piece.begin), bytes, std::move(piece.uses)};
}

std::optional<PinnedBuffer> HostPool::try_allocate(size_t bytes) {
  try {
    return allocate(bytes);
  } catch (const HostMemoryError&) {
    return std::nullopt;
  }
}

std::vector<PinnedBuffer> HostPool::allocate_pieces(size_t bytes) {
  TORCH_CHECK(bytes > 0, "HostPool: buffers of 0 bytes were asked for");
  const std::lock_guard lock(impl_->mutex);
  std::vector<Piece> parts = impl_->counted([&] { return impl_->take_parts(align_piece(bytes)); });
  impl_->note_request(bytes);
  std::vector<PinnedBuffer> buffers;
  buffers.reserve(parts.size());
  for (Piece& part : parts) {
    const size_t part_bytes = std::min(part.bytes, bytes);
    buffers.push_back(
        {this, reinterpret_cast<void*>(part.begin), part_bytes, std::move(part.uses)});
    bytes -= part_bytes;
  }
  return buffers;
}

void HostPool::reserve(size_t bytes) {
  if (bytes == 0) {
    return;
  }
  const std::lock_guard lock(impl_->mutex);
  impl_->free.add(impl_->counted([&] { return impl_->take_or_pin(align_piece(bytes)); }));
}

void HostPool::trim() {
  const std::lock_guard lock(impl_->mutex);
  impl_->remove_free_slabs();
  // Torch keeps a freed block until an event that it has recorded at the freeing is done.
  const c10::Device device = impl_->slabs.device();
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  impl_->slabs.empty_cache();
}

std::pair<c10::Storage, size_t> HostPool::in_slab(const void* data) const {
  const std::lock_guard lock(impl_->mutex);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t slab = impl_->slabs.slab_of(begin);
  return {impl_->slabs.storage_of(slab), begin - slab};
}

void HostPool::give_back(void* data, size_t bytes, std::vector<SharedEvent> uses) noexcept {
  const std::lock_guard lock(impl_->mutex);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  impl_->slabs.stats.requested_bytes -= bytes;
  impl_->free.add({begin, align_piece(bytes), impl_->slabs.slab_of(begin), std::move(uses)});
}

}  // namespace swapline
