// The planning itself: first-fit packing of blocks, the size of a slot, even cuts.
#include "swapline/optimizer/chunk_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace swapline {
namespace {

constexpr size_t kSlotAlignment = 512;  // what device allocators round to
constexpr double kSlack = 0.002;        // of the step's time, spent on a smaller arena
// Larger pieces are refused by some drivers, and by machines that have the memory but not at once.
constexpr size_t kMostPinnedBytes = size_t{16} << 30;
constexpr double kWasteAllowed = 0.0025;  // of pinned memory

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

size_t divide_up(size_t value, size_t divisor) {
  return (value + divisor - 1) / divisor;
}

size_t widest_item(std::span<const StateShape> shapes) {
  size_t widest = 1;
  for (const auto& shape : shapes) {
    widest = std::max(widest, shape.item_bytes);
  }
  return widest;
}

Rows rows_of(const StateShape& shape) {
  return {shape.num_states, shape.master_bytes / shape.item_bytes};
}

size_t row_part(const StateShape& shape, size_t unit_bytes) {
  return round_up(static_cast<size_t>(shape.numel) * shape.item_bytes, unit_bytes);
}

// The part of a row between two places at which the tensor may be cut.
size_t part_bytes(const StateShape& shape, size_t unit_bytes) {
  const size_t all = row_part(shape, unit_bytes);
  if (shape.numel <= shape.split_elements) {
    return all;
  }
  const size_t bytes = static_cast<size_t>(shape.split_elements) * shape.item_bytes;
  return std::min(all, std::lcm(bytes, unit_bytes));
}

// Bytes of a row that first fit fills of `capacity`, from shapes that come largest first.
size_t filled_bytes(std::span<const StateShape> shapes, size_t unit_bytes, size_t capacity) {
  size_t filled = 0;
  for (const auto& shape : shapes) {
    const size_t bytes = row_part(shape, unit_bytes);
    filled += filled + bytes <= capacity ? bytes : 0;
  }
  return filled;
}

// Takes from `shapes` (largest first) what fits into `capacity`, by first fit.
Block fill_block(std::vector<StateShape>& shapes, size_t unit_bytes, size_t capacity) {
  Block block;
  block.rows = rows_of(shapes.front());
  block.unit_bytes = unit_bytes;
  std::vector<StateShape> rest;
  for (const auto& shape : shapes) {
    const size_t bytes = row_part(shape, unit_bytes);
    if (block.row_bytes + bytes > capacity) {
      rest.push_back(shape);
      continue;
    }
    block.placements.push_back({shape, block.row_bytes});
    block.part_bytes = std::max(block.part_bytes, part_bytes(shape, unit_bytes));
    block.row_bytes += bytes;
  }
  shapes = std::move(rest);
  return block;
}

// Parameters back to back in the order in which they were given.
void restore_order(Block& block) {
  std::stable_sort(block.placements.begin(),
                   block.placements.end(),
                   [](const auto& a, const auto& b) { return a.shape.param < b.shape.param; });
  size_t offset = 0;
  for (Placement& placement : block.placements) {
    placement.offset_bytes = offset;
    offset += row_part(placement.shape, block.unit_bytes);
  }
}

// It may be cut at every unit.
bool is_fine(const Block& block) {
  return block.part_bytes == block.unit_bytes;
}

// The longest row such that all rows of a block fit into `bytes`.
size_t row_capacity(const Rows& rows, size_t bytes) {
  return bytes / rows.width() / kRowAlignment * kRowAlignment;
}

// How long the rows of the next block may be. A power of two is taken that is filled all but
// kWasteAllowed, the largest such; else the one of which least is left empty.
size_t next_capacity(std::span<const StateShape> shapes, size_t unit_bytes, size_t slab_bytes) {
  const Rows rows = rows_of(shapes.front());
  size_t remaining = 0;
  for (const auto& shape : shapes) {
    remaining += row_part(shape, unit_bytes);
  }
  if (remaining <= row_capacity(rows, slab_bytes)) {
    return remaining;
  }
  const size_t largest = row_part(shapes.front(), unit_bytes);
  size_t best = 0;
  double best_waste = 1;
  for (size_t bytes = slab_bytes; best == 0 || bytes <= kMostPinnedBytes; bytes *= 2) {
    const size_t capacity = row_capacity(rows, bytes);
    if (capacity < largest) {
      continue;
    }
    const size_t filled = filled_bytes(shapes, unit_bytes, capacity);
    const double waste =
        1 - static_cast<double>(filled * rows.width()) / static_cast<double>(bytes);
    if (waste <= std::max(best_waste, kWasteAllowed)) {
      best = capacity;
      best_waste = waste;
    }
    if (filled == remaining) {
      break;
    }
  }
  return best;
}

// Blocks for parameters that all have the same rows.
void plan_alike(std::vector<StateShape> shapes, size_t slab_bytes, std::vector<Block>& blocks) {
  std::stable_sort(shapes.begin(), shapes.end(), [](const auto& a, const auto& b) {
    return static_cast<size_t>(a.numel) * a.item_bytes >
           static_cast<size_t>(b.numel) * b.item_bytes;
  });
  const size_t unit_bytes = kSplitElements * widest_item(shapes);
  while (!shapes.empty()) {
    blocks.push_back(fill_block(shapes, unit_bytes, next_capacity(shapes, unit_bytes, slab_bytes)));
    if (!is_fine(blocks.back())) {
      restore_order(blocks.back());
    }
  }
}

// The parts of `block`'s parameters that lie in [begin, end) of a row.
std::vector<Piece> pieces_in(const Block& block,
                             size_t begin,
                             size_t end,
                             size_t& first_placement) {
  std::vector<Piece> pieces;
  for (size_t i = first_placement; i < block.placements.size(); ++i) {
    const auto& [shape, offset] = block.placements[i];
    const size_t bytes = static_cast<size_t>(shape.numel) * shape.item_bytes;
    if (offset >= end) {
      break;
    }
    first_placement = i;
    const size_t from = std::max(begin, offset);
    const size_t to = std::min(end, offset + bytes);
    if (from < to) {
      pieces.push_back({shape.param,
                        static_cast<int64_t>((from - offset) / shape.item_bytes),
                        static_cast<int64_t>((to - from) / shape.item_bytes),
                        from - begin});
    }
  }
  return pieces;
}

// Where the chunks of a fine block end.
std::vector<size_t> even_ends(const Block& block, size_t most_bytes) {
  const size_t num_units = block.row_bytes / block.unit_bytes;
  const size_t num_chunks = divide_up(block.row_bytes, most_bytes);
  std::vector<size_t> ends;
  for (size_t i = 1; i <= num_chunks; ++i) {
    ends.push_back(num_units * i / num_chunks * block.unit_bytes);
  }
  return ends;
}

// Where chunks end that hold as many whole parts as fit.
std::vector<size_t> full_ends(const Block& block, size_t most_bytes) {
  std::vector<size_t> ends;
  size_t begin = 0;
  size_t last_cut = 0;
  const auto add_part = [&](size_t end) {
    if (end - begin > most_bytes) {
      ends.push_back(last_cut);
      begin = last_cut;
    }
    last_cut = end;
  };
  for (const auto& [shape, offset] : block.placements) {
    const size_t bytes = row_part(shape, block.unit_bytes);
    const size_t part = part_bytes(shape, block.unit_bytes);
    for (size_t end = part; end < bytes; end += part) {
      add_part(offset + end);
    }
    add_part(offset + bytes);
  }
  ends.push_back(last_cut);
  return ends;
}

// Both in their order, each spread evenly over the whole; `first` leads.
std::vector<Chunk> mixed(std::vector<Chunk> first, std::vector<Chunk> second) {
  std::vector<Chunk> all;
  size_t i = 0;
  size_t k = 0;
  while (i < first.size() || k < second.size()) {
    const bool is_first_due = (2 * i + 1) * second.size() <= (2 * k + 1) * first.size();
    const bool takes_first = i < first.size() && (k == second.size() || is_first_due);
    all.push_back(std::move(takes_first ? first[i++] : second[k++]));
  }
  return all;
}

// The time beside total / BW, where c* is the fastest chunk and x = c / c*, is
// overhead(x) = 2 · √(total · latency / BW) · (x + 1 / x). The least x within kSlack of the
// fastest.
size_t best_slot_bytes(size_t total_state_bytes, const ArenaOptions& options) {
  const auto total = static_cast<double>(total_state_bytes);
  const double fastest = std::sqrt(total * options.copy_latency_s * options.link_bytes_per_s);
  if (fastest == 0) {
    return 0;
  }
  const double overhead = 4 * std::sqrt(total * options.copy_latency_s / options.link_bytes_per_s);
  const double allowed = 1 + kSlack * (total / options.link_bytes_per_s + overhead) / overhead;
  return static_cast<size_t>(fastest * (allowed - std::sqrt(allowed * allowed - 1)));
}

}  // namespace

std::vector<Block> plan_blocks(std::span<const StateShape> shapes, size_t slab_bytes) {
  std::map<std::pair<int, size_t>, std::vector<StateShape>, std::greater<>> by_rows;
  for (const auto& shape : shapes) {
    const Rows rows = rows_of(shape);
    by_rows[{rows.num_states, rows.master_scale}].push_back(shape);
  }
  std::vector<Block> blocks;
  for (auto& [rows, alike] : by_rows) {
    plan_alike(std::move(alike), slab_bytes, blocks);
  }
  return blocks;
}

ArenaPlan plan_arena(std::span<const Block> blocks,
                     size_t total_state_bytes,
                     const ArenaOptions& options) {
  size_t least = kSlotAlignment;
  size_t largest = kSlotAlignment;
  for (const auto& block : blocks) {
    const size_t width = block.rows.width();
    least = std::max(least, round_up(width * block.part_bytes, kSlotAlignment));
    largest = std::max(largest, round_up(width * block.row_bytes, kSlotAlignment));
  }
  size_t bound = total_state_bytes / static_cast<size_t>(options.times);
  if (options.arena_bytes > 0) {
    bound = std::min(bound, options.arena_bytes);
  }
  bound -= std::min(bound, options.scratch_bytes);
  const double slots = options.num_slots + options.scratch_per_slot;
  const size_t bound_slot =
      static_cast<size_t>(static_cast<double>(bound) / slots) / kSlotAlignment * kSlotAlignment;
  const size_t best = best_slot_bytes(total_state_bytes, options);
  ArenaPlan plan;
  plan.is_bound_raised = bound_slot < least;
  plan.slot_bytes = std::min(bound_slot, std::min(largest, round_up(best, kSlotAlignment)));
  plan.slot_bytes = std::max(plan.slot_bytes, least);
  return plan;
}

std::vector<Chunk> cut_chunks(std::span<const Block> blocks, size_t slot_bytes) {
  std::vector<Chunk> fine;
  std::vector<Chunk> whole;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Block& block = blocks[b];
    const size_t most_bytes = slot_bytes / block.rows.width() / block.unit_bytes * block.unit_bytes;
    size_t first_placement = 0;
    size_t begin = 0;
    const auto ends = is_fine(block) ? even_ends(block, most_bytes) : full_ends(block, most_bytes);
    for (const size_t end : ends) {
      Chunk chunk;
      chunk.block = b;
      chunk.rows = block.rows;
      chunk.begin_bytes = begin;
      chunk.bytes = end - begin;
      chunk.pieces = pieces_in(block, begin, end, first_placement);
      (is_fine(block) ? fine : whole).push_back(std::move(chunk));
      begin = end;
    }
  }
  return mixed(std::move(whole), std::move(fine));
}

}  // namespace swapline
