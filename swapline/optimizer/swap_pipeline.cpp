// Enqueues the pipeline. The host never waits in prefetch() and run(), except to clean up.
#include "swapline/optimizer/swap_pipeline.h"

#include "swapline/optimizer/mapped_chunks.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace swapline::detail {
namespace {

// The rows of a chunk in its slot, where they lie one behind the other.
std::vector<at::Tensor> rows_in(const at::Tensor& slot, const Chunk& chunk) {
  std::vector<at::Tensor> rows;
  for (int row = 0; row < chunk.rows.count(); ++row) {
    rows.push_back(slot.narrow(0,
                               static_cast<int64_t>(chunk.row_offset(row)),
                               static_cast<int64_t>(chunk.bytes * chunk.rows.scale(row))));
  }
  return rows;
}

}  // namespace

SwapPipeline::SwapPipeline(std::shared_ptr<SwapContext> context, HostStates& states, int num_slots)
    : context_(std::move(context)),
      states_(states),
      num_slots_(static_cast<size_t>(num_slots)),
      slots_(context_),
      timer_(context_->options().timing) {}

SwapPipeline::~SwapPipeline() {
  abandon();
}

void SwapPipeline::cut(const Cut& cut) {
  slot_bytes_ = cut.slot_bytes;
  MappedChunks parts = take_mapped(states_.blocks(),
                                   cut_chunks(states_.blocks(), cut.slot_bytes),
                                   cut.mapped_bytes,
                                   cut.joins_mapped);
  mapped_bytes_ = parts.mapped_bytes;
  mapped_.clear();
  for (const Chunk& chunk : parts.mapped) {
    std::vector<at::Tensor>& rows = mapped_.emplace_back();
    for (int row = 0; row < chunk.rows.count(); ++row) {
      const size_t scale = chunk.rows.scale(row);
      rows.push_back(
          states_.mapped(chunk.block, row, chunk.begin_bytes * scale, chunk.bytes * scale));
    }
  }
  size_t rest_bytes = 0;
  for (const Chunk& chunk : parts.rest) {
    rest_bytes += chunk.slot_bytes();
  }
  const double most_bytes = cut.kept_share * static_cast<double>(rest_bytes);
  kept_.clear();
  kept_bytes_ = 0;
  for (const Chunk& chunk : parts.rest) {
    if (static_cast<double>(kept_bytes_ + chunk.slot_bytes()) > most_bytes) {
      break;
    }
    kept_.emplace_back();
    kept_bytes_ += chunk.slot_bytes();
  }
  chunks_ = std::move(parts.mapped);
  std::move(parts.rest.begin(), parts.rest.end(), std::back_inserter(chunks_));
  stored_.assign(chunks_.size(), nullptr);
}

void SwapPipeline::prefetch(std::span<const size_t> chunks) {
  std::vector<size_t> moving;
  std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(moving), [&](size_t chunk) {
    return !is_mapped(chunk) && !shall_keep(chunk);
  });
  if (!loaded_.empty() || moving.empty()) {
    return;
  }
  try {
    slots_.grow(std::min(num_slots_, moving.size()), slot_bytes_, /*must=*/false);
    for (size_t i = 0; slots_.has_free(); ++i) {
      load({moving[i], slots_.take()});
    }
  } catch (...) {
    abandon();
    throw;
  }
}

void SwapPipeline::run(std::span<const size_t> chunks, const Update& update_chunk) {
  try {
    drop_unwanted(chunks);
    std::vector<size_t> absent;
    std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(absent), [&](size_t chunk) {
      return std::none_of(loaded_.begin(), loaded_.end(), [&](const auto& loaded) {
        return loaded.chunk == chunk;
      });
    });
    const auto num_in_place = std::count_if(absent.begin(), absent.end(), [&](size_t chunk) {
      return is_mapped(chunk) || is_kept(chunk);
    });
    // Slots before what is to be kept: with slots alone a step can be done.
    slots_.grow(std::min(num_slots_, chunks.size() - static_cast<size_t>(num_in_place)),
                slot_bytes_,
                /*must=*/true);
    std::deque<size_t> waiting;
    std::copy_if(absent.begin(), absent.end(), std::back_inserter(waiting), [&](size_t chunk) {
      return !is_mapped(chunk) && !(shall_keep(chunk) && begin_kept(chunk));
    });
    std::for_each(absent.rbegin(), absent.rend(), [&](size_t chunk) {
      if (is_mapped(chunk)) {
        loaded_.push_front({chunk, {}, Where::kMapped});
      }
    });
    const auto load_what_fits = [&] {
      while (!waiting.empty() && slots_.has_free()) {
        load({waiting.front(), slots_.take()});
        waiting.pop_front();
      }
    };
    load_what_fits();
    bool has_stored = false;
    while (!loaded_.empty()) {
      update(loaded_.front(), update_chunk);
      if (loaded_.front().where != Where::kSlot) {
        note_updated(std::move(loaded_.front()));
        loaded_.pop_front();
        continue;
      }
      store(loaded_.front());
      has_stored = true;
      slots_.give_back(std::move(loaded_.front().slot));
      loaded_.pop_front();
      load_what_fits();
      slots_.release_free();
    }
    slots_.release_free();
    auto& copies = context_->copies();
    chunks.empty() ? timer_.abandon()
                   : timer_.end_step(has_stored ? copies.d2h_stream() : copies.compute_stream());
  } catch (...) {
    note_broken_update();
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

// A chunk that stays on the device: there already, or to be loaded. False: there is no room.
bool SwapPipeline::begin_kept(size_t chunk) {
  if (is_kept(chunk)) {
    const Kept& there = kept(chunk);
    loaded_.push_back({chunk, {there.bytes, nullptr, nullptr, there.updated}, Where::kKept});
    return true;
  }
  at::Tensor bytes;
  try {
    bytes = at::empty({static_cast<int64_t>(chunks_[chunk].slot_bytes())},
                      at::TensorOptions().dtype(at::kByte).device(context_->device()));
  } catch (const c10::OutOfMemoryError&) {
    return false;
  }
  context_->note_device_memory(bytes.storage(), MemoryKind::kOptimizerStates);
  const SharedEvent allocated = record_event(context_->copies().compute_stream());
  load({chunk, {std::move(bytes), allocated, nullptr, nullptr}, Where::kKept});
  return true;
}

// Brings the host states up to date with kept chunks and lets these go. The calling thread waits.
void SwapPipeline::store_kept() {
  auto& copies = context_->copies();
  const c10::Stream d2h = copies.d2h_stream();
  const auto is_there = [](const Kept& kept) { return kept.bytes.defined(); };
  if (std::none_of(kept_.begin(), kept_.end(), is_there)) {
    return;
  }
  try {
    for (size_t i = 0; i < kept_.size(); ++i) {
      if (is_there(kept_[i])) {
        context_->order().make_wait(d2h, *kept_[i].updated, Wait::kStoreAfterUpdate);
        copy_rows(chunks_[num_mapped() + i],
                  {kept_[i].bytes, nullptr, nullptr, nullptr},
                  /*out=*/true);
      }
    }
  } catch (...) {
    d2h.synchronize();
    throw;
  }
  d2h.synchronize();
  std::fill(kept_.begin(), kept_.end(), Kept());
}

size_t SwapPipeline::held_bytes() const {
  size_t bytes = slots_.held_bytes();
  for (const Kept& kept : kept_) {
    bytes += kept.bytes.defined() ? kept.bytes.nbytes() : 0;
  }
  return bytes;
}

// The slot is listed before its copy is enqueued, so that its memory outlives the copy also when
// something throws.
void SwapPipeline::load(Loaded loaded) {
  const size_t chunk = loaded.chunk;
  loaded_.push_back(std::move(loaded));
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
  slot.loaded = copy_rows(chunks_[chunk], slot, /*out=*/false);
  if (spans != nullptr) {
    spans->h2d.end(h2d);
  }
  last_load_ = slot.loaded;
}

void SwapPipeline::update(const Loaded& loaded, const Update& update_chunk) {
  const c10::Stream compute = context_->copies().compute_stream();
  timer_.begin_step(compute);
  StepTimer::Spans* const spans = timer_.running();
  if (loaded.where != Where::kMapped) {
    if (spans != nullptr) {
      spans->exposed.begin(compute);
    }
    context_->order().make_wait(compute, *loaded.slot.loaded, Wait::kUpdateAfterLoad);
    if (spans != nullptr) {
      spans->exposed.end(compute);
    }
  }
  if (spans != nullptr) {
    spans->update.begin(compute);
  }
  const Chunk& chunk = chunks_[loaded.chunk];
  update_chunk(
      chunk,
      loaded.where == Where::kMapped ? mapped_[loaded.chunk] : rows_in(loaded.slot.bytes, chunk));
  if (spans != nullptr) {
    spans->update.end(compute);
  }
}

// A chunk that stays where it was updated.
void SwapPipeline::note_updated(Loaded loaded) {
  SharedEvent updated = record_event(context_->copies().compute_stream());
  if (loaded.where == Where::kMapped) {
    last_mapped_update_ = std::move(updated);
  } else {
    kept(loaded.chunk) = {std::move(loaded.slot.bytes), std::move(updated)};
  }
}

// How far an update of mapped chunks came that threw is not known: it counts as enqueued.
void SwapPipeline::note_broken_update() noexcept {
  try {
    if (num_mapped() > 0) {
      last_mapped_update_ = record_event(context_->copies().compute_stream());
    }
  } catch (const std::exception&) {
    // The device is lost: nothing runs on it.
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
  loaded.slot.stored = copy_rows(chunks_[loaded.chunk], loaded.slot, /*out=*/true);
  if (spans != nullptr) {
    spans->d2h.end(d2h);
  }
  loaded.slot.loaded = nullptr;
  stored_[loaded.chunk] = loaded.slot.stored;
  last_store_ = loaded.slot.stored;
}

// One copy a row, one event for all. Copies that are refused are tried once more: both directions
// can be repeated without harm, and giving up in the middle of a step cannot be undone.
SharedEvent SwapPipeline::copy_rows(const Chunk& chunk, const Slot& slot, bool out) {
  auto& copies = context_->copies();
  const Block& block = states_.blocks()[chunk.block];
  std::vector<CopyRange> ranges;
  for (int row = 0; row < chunk.rows.count(); ++row) {
    const size_t scale = chunk.rows.scale(row);
    ranges.push_back({chunk.row_offset(row),
                      block.row_begin(row) + chunk.begin_bytes * scale,
                      chunk.bytes * scale});
  }
  PinnedBuffer& host = states_.memory(chunk.block);
  const auto copy = [&] {
    return out ? copies.copy_out(slot.bytes.storage(), host, ranges)
               : copies.copy_in(slot.bytes.storage(), host, ranges);
  };
  SharedEvent done;
  try {
    done = copy();
  } catch (const std::exception&) {
    done = copy();
  }
  (out ? num_copies_out_ : num_copies_in_) += static_cast<int64_t>(ranges.size());
  return done;
}

void SwapPipeline::drain() {
  for (const auto& last : {last_load_, last_store_, last_mapped_update_}) {
    if (last) {
      last->synchronize();
    }
  }
  if (!loaded_.empty()) {
    abandon();
  }
  store_kept();
  context_->settle_done();
}

// Leaves no copy or mapped update in flight and no slot held. Kept chunks stay: their states are
// nowhere else.
void SwapPipeline::abandon() noexcept {
  try {
    context_->copies().h2d_stream().synchronize();
    context_->copies().d2h_stream().synchronize();
    if (last_mapped_update_) {
      last_mapped_update_->synchronize();
    }
  } catch (const std::exception&) {
    // The device is lost: nothing can be in flight on it.
  }
  loaded_.clear();
  slots_.discard();
  timer_.abandon();
}

}  // namespace swapline::detail
