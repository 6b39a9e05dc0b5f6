// Enqueues the pipeline. The host never waits in prefetch() and run(), except to clean up.
#include "swapline/optimizer/swap_pipeline.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace swapline::detail {

SwapPipeline::SwapPipeline(std::shared_ptr<SwapContext> context, HostStates& states, int num_slots)
    : context_(std::move(context)),
      states_(states),
      num_slots_(static_cast<size_t>(num_slots)),
      slots_(context_),
      timer_(context_->options().timing) {}

SwapPipeline::~SwapPipeline() {
  abandon();
}

void SwapPipeline::set_slot_bytes(size_t slot_bytes) {
  slot_bytes_ = slot_bytes;
  chunks_ = cut_chunks(states_.blocks(), slot_bytes);
  stored_.assign(chunks_.size(), nullptr);
}

void SwapPipeline::prefetch(std::span<const size_t> chunks) {
  if (!loaded_.empty() || chunks.empty()) {
    return;
  }
  try {
    slots_.grow(std::min(num_slots_, chunks.size()), slot_bytes_, /*must=*/false);
    for (size_t i = 0; slots_.has_free(); ++i) {
      load(chunks[i]);
    }
  } catch (...) {
    abandon();
    throw;
  }
}

void SwapPipeline::run(std::span<const size_t> chunks, const Update& update_chunk) {
  try {
    drop_unwanted(chunks);
    std::deque<size_t> waiting;
    std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(waiting), [&](size_t chunk) {
      return std::none_of(loaded_.begin(), loaded_.end(), [&](const auto& loaded) {
        return loaded.chunk == chunk;
      });
    });
    slots_.grow(std::min(num_slots_, chunks.size()), slot_bytes_, /*must=*/true);
    const auto load_what_fits = [&] {
      while (!waiting.empty() && slots_.has_free()) {
        load(waiting.front());
        waiting.pop_front();
      }
    };
    load_what_fits();
    while (!loaded_.empty()) {
      update(loaded_.front(), update_chunk);
      store(loaded_.front());
      slots_.give_back(std::move(loaded_.front().slot));
      loaded_.pop_front();
      load_what_fits();
      slots_.release_free();
    }
    slots_.release_free();
    chunks.empty() ? timer_.abandon() : timer_.end_step(context_->copies().d2h_stream());
  } catch (...) {
    abandon();
    throw;
  }
}

// Slots whose chunk turned out not to be needed go back; their states are unchanged on the host.
void SwapPipeline::drop_unwanted(std::span<const size_t> chunks) {
  for (auto it = loaded_.begin(); it != loaded_.end();) {
    if (std::find(chunks.begin(), chunks.end(), it->chunk) != chunks.end()) {
      ++it;
    } else {
      slots_.give_back(std::move(it->slot));
      it = loaded_.erase(it);
    }
  }
}

// Into the slot that has been free longest. The slot is listed before its copy is enqueued, so that
// its memory outlives the copy also when something throws.
void SwapPipeline::load(size_t chunk) {
  loaded_.push_back({chunk, slots_.take()});
  Slot& slot = loaded_.back().slot;
  auto& copies = context_->copies();
  auto& order = context_->order();
  const c10::Stream h2d = copies.h2d_stream();
  if (slot.allocated) {
    order.make_wait(h2d, *slot.allocated, Wait::kSwapInAfterAllocation);
    slot.allocated = nullptr;
  }
  if (slot.stored) {
    order.make_wait(h2d, *slot.stored, Wait::kLoadAfterSlotFree);
    slot.stored = nullptr;
  }
  if (stored_[chunk]) {
    order.make_wait(h2d, *stored_[chunk], Wait::kLoadAfterStore);
  }
  timer_.begin_step(h2d);
  StepTimer::Spans* const spans = timer_.running();
  if (spans != nullptr) {
    spans->h2d.begin(h2d);
  }
  copy_rows(chunks_[chunk], slot, /*out=*/false);
  if (spans != nullptr) {
    spans->h2d.end(h2d);
  }
  slot.loaded = record_event(h2d);
  last_load_ = slot.loaded;
}

void SwapPipeline::update(const Loaded& loaded, const Update& update_chunk) {
  const c10::Stream compute = context_->copies().compute_stream();
  StepTimer::Spans* const spans = timer_.running();
  if (spans != nullptr) {
    spans->exposed.begin(compute);
  }
  context_->order().make_wait(compute, *loaded.slot.loaded, Wait::kUpdateAfterLoad);
  if (spans != nullptr) {
    spans->exposed.end(compute);
    spans->update.begin(compute);
  }
  update_chunk(chunks_[loaded.chunk], loaded.slot.bytes);
  if (spans != nullptr) {
    spans->update.end(compute);
  }
}

void SwapPipeline::store(Loaded& loaded) {
  auto& copies = context_->copies();
  const c10::Stream d2h = copies.d2h_stream();
  const SharedEvent updated = record_event(copies.compute_stream());
  context_->order().make_wait(d2h, *updated, Wait::kStoreAfterUpdate);
  StepTimer::Spans* const spans = timer_.running();
  if (spans != nullptr) {
    spans->d2h.begin(d2h);
  }
  copy_rows(chunks_[loaded.chunk], loaded.slot, /*out=*/true);
  if (spans != nullptr) {
    spans->d2h.end(d2h);
  }
  loaded.slot.stored = record_event(d2h);
  loaded.slot.loaded = nullptr;
  stored_[loaded.chunk] = loaded.slot.stored;
  last_store_ = loaded.slot.stored;
}

// One copy a row. A copy that is refused is tried once more: both directions can be repeated
// without harm, and giving up in the middle of a step cannot be undone.
void SwapPipeline::copy_rows(const Chunk& chunk, const Slot& slot, bool out) {
  auto& copies = context_->copies();
  const c10::Storage& storage = slot.bytes.storage();
  for (int state = 0; state < chunk.num_states; ++state) {
    const size_t offset = static_cast<size_t>(state) * chunk.bytes;
    PinnedBuffer& row = states_.row(chunk.block, state);
    const auto copy = [&] {
      if (out) {
        copies.copy_out(storage, offset, row, chunk.begin_bytes, chunk.bytes);
      } else {
        copies.copy_in(storage, offset, row, chunk.begin_bytes, chunk.bytes);
      }
    };
    try {
      copy();
    } catch (const std::exception&) {
      copy();
    }
    ++(out ? num_copies_out_ : num_copies_in_);
  }
}

void SwapPipeline::drain() {
  for (const auto& last : {last_load_, last_store_}) {
    if (last) {
      last->synchronize();
    }
  }
  if (!loaded_.empty()) {
    abandon();
  }
  context_->settle_done();
}

// Leaves no copy in flight and no slot held.
void SwapPipeline::abandon() noexcept {
  try {
    context_->copies().h2d_stream().synchronize();
    context_->copies().d2h_stream().synchronize();
  } catch (const std::exception&) {
    // The device is lost: nothing can be in flight on it.
  }
  loaded_.clear();
  slots_.discard();
  timer_.abandon();
}

}  // namespace swapline::detail
