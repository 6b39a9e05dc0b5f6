// The three-stream pipeline: while chunk k is updated, k+1 comes in and k−1 goes out.
//
// Waits, all by name (StreamOrder):
//   load k    h2d      after the slot's allocation (kSwapInAfterAllocation), the slot's last store
//                      (kLoadAfterSlotFree) and the chunk's last store, a step ago
//                      (kLoadAfterStore)
//   update k  compute  after load k, or after its last update where it was kept (kUpdateAfterLoad)
//   store k   d2h      after update k (kStoreAfterUpdate)
//   release   compute  after the slot's last store (kReleaseSlotAfterStore, by the context)
// Compute never waits for a store inside a step: the last stores run under the next forward.
// The first chunks may be mapped: updated in place in host memory, which their kernels read and
// write over the link. Behind them some may be kept: loaded once, updated where they are while the
// others' first loads run, and stored by drain().
// Mapped chunks are updated before all others, while the first loads share the link with them.
// Spread between the others they would hold up the updates, and so the stores that make room for
// loads: a tenth more time. At the end they would hold compute up until their writes had found room
// beside the last stores, which run under the next forward now.
#pragma once

#include "swapline/optimizer/chunk_plan.h"
#include "swapline/optimizer/host_states.h"
#include "swapline/optimizer/slot_ring.h"
#include "swapline/optimizer/step_times.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

class SwapPipeline {
 public:
  // Enqueues the update of a chunk on the compute stream. `rows`: the chunk's states where they are
  // now, the bytes of each of its rows.
  using Update = std::function<void(const Chunk& chunk, std::span<const at::Tensor> rows)>;

  SwapPipeline(std::shared_ptr<SwapContext> context, HostStates& states, int num_slots);
  // Waits for its copies.
  ~SwapPipeline();

  struct Cut {
    size_t slot_bytes = 0;
    // At most so many bytes of states are mapped. Requires: the device can.
    size_t mapped_bytes = 0;
    // One chunk for what is mapped of a block, however large.
    bool joins_mapped = false;
    // The share of what is not mapped, at most, that is kept on the device from its first update
    // on, if it has room.
    double kept_share = 0;
  };
  // Cuts the host states anew. Requires: drain() since the last copy or update.
  void cut(const Cut& cut);
  // Mapped ones first.
  std::span<const Chunk> chunks() const { return chunks_; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t num_slots() const { return num_slots_; }
  // Slots of all chunks that pass through them: none where every chunk is mapped or kept.
  size_t arena_bytes() const {
    return num_mapped() + kept_.size() < chunks_.size() ? num_slots_ * slot_bytes_ : 0;
  }

  // Begins to load the first of `chunks` into the slots; nothing if that was done before, or if the
  // device has no room for a slot now.
  void prefetch(std::span<const size_t> chunks);
  // Loads, updates and stores `chunks`; what was prefetched and is not among them is dropped.
  // An exception from a copy, an allocation or `update` comes out after every copy is done and
  // every slot is free; chunks whose update was not reached are unchanged on the host.
  void run(std::span<const size_t> chunks, const Update& update);

  // The calling thread waits until the host states are whole and no kernel uses them. Drops what
  // was prefetched, so that a change made to the host states from now on is seen by the next step;
  // so are kept chunks.
  void drain();

  const SlotRing& slots() const { return slots_; }
  size_t kept_bytes() const { return kept_bytes_; }  // when all that shall be kept is
  size_t mapped_bytes() const { return mapped_bytes_; }
  // Bytes of states on the device: slots and kept chunks.
  size_t held_bytes() const;
  // Copies of run() and prefetch() since construction.
  int64_t num_copies_in() const { return num_copies_in_; }
  int64_t num_copies_out() const { return num_copies_out_; }
  StepTimer& timer() { return timer_; }

 private:
  enum class Where { kSlot, kKept, kMapped };
  // A chunk that is ready to be updated once its slot is loaded.
  struct Loaded {
    size_t chunk;
    Slot slot;
    Where where = Where::kSlot;
  };
  struct Kept {
    at::Tensor bytes;  // undefined: not on the device
    SharedEvent updated;
  };

  size_t num_mapped() const { return mapped_.size(); }
  bool is_mapped(size_t chunk) const { return chunk < num_mapped(); }
  bool shall_keep(size_t chunk) const {
    return !is_mapped(chunk) && chunk - num_mapped() < kept_.size();
  }
  Kept& kept(size_t chunk) { return kept_[chunk - num_mapped()]; }
  bool is_kept(size_t chunk) { return shall_keep(chunk) && kept(chunk).bytes.defined(); }
  bool begin_kept(size_t chunk);
  void store_kept();
  void load(Loaded loaded);
  void update(const Loaded& loaded, const Update& update);
  void note_updated(Loaded loaded);
  void note_broken_update() noexcept;
  void store(Loaded& loaded);
  SharedEvent copy_rows(const Chunk& chunk, const Slot& slot, bool out);
  void drop_unwanted(std::span<const size_t> chunks);
  void abandon() noexcept;

  std::shared_ptr<SwapContext> context_;
  HostStates& states_;
  const size_t num_slots_;
  size_t slot_bytes_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<std::vector<at::Tensor>> mapped_;  // the rows of the first chunks
  std::vector<Kept> kept_;                       // of the chunks behind them
  size_t mapped_bytes_ = 0;
  size_t kept_bytes_ = 0;
  std::vector<SharedEvent> stored_;  // per chunk: its last copy out; null before the first
  SharedEvent last_load_;
  SharedEvent last_store_;
  SharedEvent last_mapped_update_;
  SlotRing slots_;
  std::deque<Loaded> loaded_;  // in the order of their updates
  StepTimer timer_;
  int64_t num_copies_in_ = 0;
  int64_t num_copies_out_ = 0;
};

}  // namespace swapline::detail
