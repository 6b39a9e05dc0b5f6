// The device arena: slots of equal size that exist only around a step.
#pragma once

#include "swapline/memory/shared_event.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace swapline::detail {

// A device buffer for one chunk, and what must be done before its bytes change hands.
struct Slot {
  at::Tensor bytes;       // [slot_bytes], kByte
  SharedEvent allocated;  // on the compute stream: its former users are done; null: known already
  SharedEvent stored;     // its last copy out; null: none in flight
  SharedEvent loaded;     // its last copy in; null: none
  std::optional<c10::Stream> pool = {};  // the stream that was current when it was allocated
};

// Slots are allocated on the compute stream, so that their blocks stay in its pool, and given to
// the context when their last copy out is enqueued. A step that comes while such copies still run
// takes the very same slots again: however far the host runs ahead, no more than the arena is held.
class SlotRing {
 public:
  explicit SlotRing(std::shared_ptr<SwapContext> context) : context_(std::move(context)) {}

  // Makes slots of `slot_bytes` free to take until `num_slots` are open. With less memory on the
  // device it makes fewer. When not even one is open then: throws what the allocator throws if
  // `must`.
  void grow(size_t num_slots, size_t slot_bytes, bool must);

  bool has_free() const { return !free_.empty(); }
  // The slot that has been free longest.
  Slot take();
  // Back for another chunk.
  void give_back(Slot slot) { free_.push_back(std::move(slot)); }
  // Gives the free slots to the context until their copies are done; they are open no more.
  void release_free();
  // Forgets all slots at once. Requires: no copy of theirs is in flight.
  void discard();

  // Bytes of slots that exist now, those whose last copy still runs included.
  size_t held_bytes() const;
  // Times that the device had no room for all slots.
  int64_t num_shortages() const { return num_shortages_; }

 private:
  struct Released {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    SharedEvent stored;
    std::optional<c10::Stream> pool;
  };

  std::optional<Slot> adopt(size_t slot_bytes);
  at::Tensor allocate(size_t slot_bytes);
  std::optional<at::Tensor> try_allocate(size_t slot_bytes, bool must);

  std::shared_ptr<SwapContext> context_;
  size_t num_open_ = 0;
  std::deque<Slot> free_;
  std::deque<Released> released_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> all_;
  int64_t num_shortages_ = 0;
};

}  // namespace swapline::detail
