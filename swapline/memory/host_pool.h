// Pinned host memory in large slabs, carved exactly.
//
// Torch's pinned allocators round every request up to a power of two and never split a block. The
// pool asks for whole slabs whose size is a power of two (nothing is rounded away), hands out
// 512-byte aligned pieces best-fit, joins neighbours when they come back, and keeps the slabs until
// trim() or its end.
//
// What is pinned: at most what is requested x 1.01 + one slab, for requests made by
// allocate_pieces(), which fills slabs to the end. allocate() promises one piece; it holds the
// bound too when pieces are small against a slab, and for a piece larger than a slab where the
// device's allocator does not round it (a probe of its statistics tells whether it rounds at all,
// torch's setting pinned_max_round_threshold_mb up to which size). Where it does round, such a
// piece gets a slab of the next power of two, and the rest of it serves later requests: use
// allocate_pieces() for anything large that need not be contiguous, or fill powers of two.
#pragma once

#include "swapline/export.h"
#include "swapline/memory/host_limits.h"
#include "swapline/memory/shared_event.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

namespace swapline {

struct HostPoolOptions {
  // Behaviour
  size_t max_bytes = 0;  // most bytes the pool may pin; 0: no budget of its own
  std::string budget_option = "HostPoolOptions::max_bytes";  // what an error tells the user to turn
  // The device's allocator locks pages in this process (mlock), so that RLIMIT_MEMLOCK counts. The
  // drivers of CUDA, Ascend and XPU pin by themselves and ignore it.
  bool device_locks_pages = false;
  // What the system still grants, asked before each new slab; empty: tightest_host_limit().
  std::function<std::optional<HostLimit>()> read_limit;
  // Performance
  size_t slab_bytes = size_t{64} << 20;  // size of a slab, rounded up to a power of two
};

struct HostPoolStats {
  size_t requested_bytes = 0;  // asked for and not yet given back
  size_t peak_requested_bytes = 0;
  size_t pinned_bytes = 0;  // held from the system, in slabs
  size_t peak_pinned_bytes = 0;
  size_t num_slabs = 0;
  size_t num_pinned_allocations = 0;  // calls to the device's pinned allocator since construction
  size_t num_failures = 0;            // requests that could not be served
};

// Host memory could not be had. The message names host memory, the bytes asked for and free, the
// limit that was hit and the option to turn.
class SWAPLINE_API HostMemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class HostPool;

// A piece of pinned memory; move-only. Gives itself back when destroyed, also while copies are in
// flight: the uses noted on it travel with the bytes to their next owner, who must order after
// them. The pool must outlive it.
class SWAPLINE_API PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // as requested
  explicit operator bool() const { return data_ != nullptr; }
  // A part of the bytes as a tensor [bytes] of kByte, for copies: a view of the whole slab's
  // storage, which it keeps alive, not of a storage of its own. Backends know a copy's host memory
  // by the block that their allocator gave out; what they do not know they copy through a buffer of
  // their own, or make the host wait.
  at::Tensor bytes_at(size_t offset_bytes, size_t bytes) const;

  // Notes that a copy reads or writes the bytes until `event` is done. Requires: the copy is
  // ordered behind former_uses().
  void add_use(SharedEvent event);
  // Uses noted by this owner and not yet known to be done. Their order among each other is the
  // owner's business.
  const std::vector<SharedEvent>& uses() const { return uses_; }
  // Uses of the bytes' former owners. Every copy that touches them must be ordered behind these;
  // CopyStreams does so.
  const std::vector<SharedEvent>& former_uses() const { return former_uses_; }
  // Forgets former uses that are done.
  void settle_former_uses();
  // Blocks the calling thread until every use, former ones included, is done, then forgets them.
  void wait_for_uses();

 private:
  friend class HostPool;
  PinnedBuffer(HostPool* pool, void* data, size_t bytes, std::vector<SharedEvent> former_uses);
  void give_back() noexcept;

  HostPool* pool_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  size_t prune_at_ = 8;    // number of uses at which done ones are looked for
  bool was_used_ = false;  // by this owner
  std::vector<SharedEvent> uses_;
  std::vector<SharedEvent> former_uses_;
};

// Thread-safe. Steady workloads pin nothing after their first step.
class SWAPLINE_API HostPool {
 public:
  explicit HostPool(c10::Device device, HostPoolOptions options = {});
  // Requires: every PinnedBuffer is gone. Waits for uses still in flight.
  ~HostPool();
  HostPool(const HostPool&) = delete;
  HostPool& operator=(const HostPool&) = delete;

  // A buffer of exactly `bytes` (> 0). Prefers free bytes without uses in flight, then free bytes
  // with uses (the buffer carries them), then a new slab.
  // Throws: HostMemoryError; nothing is changed then.
  PinnedBuffer allocate(size_t bytes);
  // The same, without an exception: nullopt, counted in num_failures.
  std::optional<PinnedBuffer> try_allocate(size_t bytes);
  // Buffers that together hold `bytes` (> 0), in order: one where a free piece or a slab is large
  // enough, else several, none smaller than 1/128 of a slab but the last. Throws: HostMemoryError;
  // nothing is handed out then.
  std::vector<PinnedBuffer> allocate_pieces(size_t bytes);

  // Pins slabs so that `bytes` more can be handed out in one piece. Throws: HostMemoryError.
  void reserve(size_t bytes);

  // Returns wholly free slabs to the system. Waits for the device: torch keeps freed pinned memory
  // until all its uses are done, and then for whoever asks next; that cache is emptied, others'
  // free blocks in it too. The pool's end does the same, but waits for the slabs' own uses only.
  void trim();

  HostPoolStats stats() const;
  c10::Device device() const;

 private:
  friend class PinnedBuffer;
  void give_back(void* data, size_t bytes, std::vector<SharedEvent> uses) noexcept;
  // The slab that `data` is in, and where.
  std::pair<c10::Storage, size_t> in_slab(const void* data) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace swapline
