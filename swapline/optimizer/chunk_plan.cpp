// The planning itself: first-fit packing of blocks, the size of a slot, even cuts.
#include "swapline/optimizer/chunk_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

namespace swapline {
namespace {

constexpr size_t kSlotAlignment = 512;  // what device allocators round to

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
    block.row_bytes += bytes;
  }
  shapes = std::move(rest);
  return block;
}

// Blocks for parameters that all have the same rows.
void plan_alike(std::vector<StateShape> shapes, size_t slab_bytes, std::vector<Block>& blocks) {
  std::stable_sort(shapes.begin(), shapes.end(), [](const auto& a, const auto& b) {
    return static_cast<size_t>(a.numel) * a.item_bytes >
           static_cast<size_t>(b.numel) * b.item_bytes;
  });
  const size_t unit_bytes = kSplitElements * widest_item(shapes);
  while (!shapes.empty()) {
    size_t remaining = 0;
    for (const auto& shape : shapes) {
      remaining += row_part(shape, unit_bytes);
    }
    const size_t least = std::max(slab_bytes, std::bit_ceil(row_part(shapes.front(), unit_bytes)));
    const size_t capacity =
        remaining <= least ? remaining : std::max(least, std::bit_floor(remaining));
    blocks.push_back(fill_block(shapes, unit_bytes, capacity));
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
    least = std::max(least, round_up(width * block.unit_bytes, kSlotAlignment));
    largest = std::max(largest, round_up(width * block.row_bytes, kSlotAlignment));
  }
  size_t bound = total_state_bytes / static_cast<size_t>(options.times);
  if (options.arena_bytes > 0) {
    bound = std::min(bound, options.arena_bytes);
  }
  const double slots = options.num_slots + options.scratch_per_slot;
  const size_t bound_slot =
      static_cast<size_t>(static_cast<double>(bound) / slots) / kSlotAlignment * kSlotAlignment;
  const auto best = static_cast<size_t>(std::sqrt(
      static_cast<double>(total_state_bytes) * options.copy_latency_s * options.link_bytes_per_s));
  ArenaPlan plan;
  plan.is_bound_raised = bound_slot < least;
  plan.slot_bytes = std::min(bound_slot, std::min(largest, round_up(best, kSlotAlignment)));
  plan.slot_bytes = std::max(plan.slot_bytes, least);
  return plan;
}

std::vector<Chunk> cut_chunks(std::span<const Block> blocks, size_t slot_bytes) {
  std::vector<Chunk> chunks;
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Block& block = blocks[b];
    const size_t num_units = block.row_bytes / block.unit_bytes;
    const size_t most_units = slot_bytes / block.rows.width() / block.unit_bytes;
    const size_t num_chunks = divide_up(num_units, most_units);
    size_t first_placement = 0;
    for (size_t i = 0; i < num_chunks; ++i) {
      Chunk chunk;
      chunk.block = b;
      chunk.rows = block.rows;
      chunk.begin_bytes = num_units * i / num_chunks * block.unit_bytes;
      const size_t end = num_units * (i + 1) / num_chunks * block.unit_bytes;
      chunk.bytes = end - chunk.begin_bytes;
      chunk.pieces = pieces_in(block, chunk.begin_bytes, end, first_placement);
      chunks.push_back(std::move(chunk));
    }
  }
  return chunks;
}

}  // namespace swapline
