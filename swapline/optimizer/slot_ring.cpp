// Allocation, reuse and release of slots.
#include "swapline/optimizer/slot_ring.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace swapline::detail {
namespace {

at::Tensor byte_tensor(c10::Storage storage, size_t bytes) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(storage.device());
  return at::empty({0}, options).set_(std::move(storage), 0, {static_cast<int64_t>(bytes)}, {1});
}

}  // namespace

void SlotRing::grow(size_t num_slots, size_t slot_bytes, bool must) {
  context_->settle_done();
  std::erase_if(all_, [](const auto& storage) { return storage.expired(); });
  std::vector<Slot> adopted;
  std::vector<at::Tensor> fresh;
  while (num_open_ + adopted.size() < num_slots) {
    auto slot = adopt(slot_bytes);
    if (!slot) {
      break;
    }
    adopted.push_back(std::move(*slot));
  }
  while (num_open_ + adopted.size() + fresh.size() < num_slots) {
    const bool has_any = num_open_ + adopted.size() + fresh.size() > 0;
    auto bytes = try_allocate(slot_bytes, must && !has_any);
    if (!bytes) {
      ++num_shortages_;
      break;
    }
    fresh.push_back(std::move(*bytes));
  }
  num_open_ += adopted.size() + fresh.size();
  if (!fresh.empty()) {
    const c10::Stream compute = context_->copies().compute_stream();
    const SharedEvent allocated = record_event(compute);
    for (auto& bytes : fresh) {
      free_.push_back({std::move(bytes), allocated, nullptr, nullptr, compute});
    }
  }
  // Behind the fresh ones: these are still being copied out.
  for (auto& slot : adopted) {
    free_.push_back(std::move(slot));
  }
}

// A slot of the last step that the context still holds: reused behind its own copy out.
std::optional<Slot> SlotRing::adopt(size_t slot_bytes) {
  while (!released_.empty()) {
    Released released = std::move(released_.front());
    released_.pop_front();
    auto storage = released.storage.lock();
    if (storage && storage->nbytes() == slot_bytes) {
      return Slot{byte_tensor(c10::Storage(std::move(storage)), slot_bytes),
                  nullptr,
                  std::move(released.stored),
                  nullptr,
                  released.pool};
    }
  }
  return std::nullopt;
}

at::Tensor SlotRing::allocate(size_t slot_bytes) {
  auto bytes = at::empty({static_cast<int64_t>(slot_bytes)},
                         at::TensorOptions().dtype(at::kByte).device(context_->device()));
  context_->note_device_memory(bytes.storage(), MemoryKind::kOptimizerStates);
  all_.push_back(bytes.storage().getWeakStorageImpl());
  return bytes;
}

std::optional<at::Tensor> SlotRing::try_allocate(size_t slot_bytes, bool must) {
  try {
    return allocate(slot_bytes);
  } catch (const c10::OutOfMemoryError&) {
    // What other users have pending comes back behind a wait on the stream.
    context_->settle_all();
  }
  try {
    return allocate(slot_bytes);
  } catch (const c10::OutOfMemoryError&) {
    if (must) {
      throw;
    }
    return std::nullopt;
  }
}

Slot SlotRing::take() {
  Slot slot = std::move(free_.front());
  free_.pop_front();
  return slot;
}

void SlotRing::release_free() {
  while (has_free()) {
    const Slot slot = take();
    --num_open_;
    // A load that was dropped comes after the slot's last store.
    const SharedEvent last = slot.loaded ? slot.loaded : slot.stored;
    if (last) {
      const c10::Storage& storage = slot.bytes.storage();
      released_.push_back({storage.getWeakStorageImpl(), last, slot.pool});
      context_->release_later(storage, last, Wait::kReleaseSlotAfterStore, slot.pool);
    }
  }
}

void SlotRing::discard() {
  free_.clear();
  released_.clear();
  num_open_ = 0;
}

size_t SlotRing::held_bytes() const {
  size_t bytes = 0;
  for (const auto& weak : all_) {
    if (const auto storage = weak.lock()) {
      bytes += storage->nbytes();
    }
  }
  return bytes;
}

}  // namespace swapline::detail
