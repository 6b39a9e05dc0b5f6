// Where optimizer states lie in host memory, and the chunks in which they pass through the device.
// Arithmetic only: no tensors, no memory.
//
// A block is one stretch of host memory, state-major: all of its parameters' exp_avg back to back,
// then all their exp_avg_sq, and so on; every row is laid out alike. Masters are a last row, wider
// by a whole factor. A chunk is a range of a block's rows, so it moves with one copy per row and
// direction.
#pragma once

#include "swapline/export.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace swapline {

// Elements between two places at which a tensor may be cut. The fused CPU kernel rounds its vector
// body and its scalar tail differently: cut at multiples of 64 elements from the tensor's start,
// the bits are those of the whole tensor.
inline constexpr int64_t kSplitElements = 64;

// Between two rows of a block, in bytes: what device and pinned allocators align to.
inline constexpr size_t kRowAlignment = 512;

// One parameter's states.
struct StateShape {
  int64_t param = 0;        // the caller's index
  int64_t numel = 0;        // > 0
  size_t item_bytes = 4;    // of one element of each moment
  int num_states = 2;       // moments: 2, or 3 with amsgrad
  size_t master_bytes = 0;  // of one element of the master: 0 or a multiple of item_bytes
  // Elements between two places at which it may be cut: a multiple of kSplitElements; numel or
  // more: it is never cut.
  int64_t split_elements = kSplitElements;

  size_t bytes_per_element() const {
    return item_bytes * static_cast<size_t>(num_states) + master_bytes;
  }
  size_t bytes() const { return static_cast<size_t>(numel) * bytes_per_element(); }
};

// A parameter's place in the rows of a block.
struct Placement {
  StateShape shape;
  size_t offset_bytes = 0;  // in a moment's row; a multiple of the block's unit
};

// The rows of a block or of a chunk: its moments and, last, the masters.
struct Rows {
  int num_states = 0;       // rows of moments
  size_t master_scale = 0;  // how many times a moment's row the masters' is; 0: there is none

  int count() const { return num_states + (master_scale > 0 ? 1 : 0); }
  size_t scale(int row) const { return row < num_states ? 1 : master_scale; }
  // All rows together, in rows of moments.
  size_t width() const { return static_cast<size_t>(num_states) + master_scale; }
};

struct Block {
  Rows rows;
  size_t unit_bytes = 0;  // kSplitElements of the widest moment in it: cuts are at multiples
  size_t part_bytes = 0;  // longest stretch of a row that stays whole; a multiple of unit_bytes
  size_t row_bytes = 0;   // of a moment's row; a multiple of unit_bytes
  std::vector<Placement> placements;  // by rising offset

  // Where a row begins; a multiple of kRowAlignment.
  size_t row_begin(int row) const { return row_stride() * static_cast<size_t>(row); }
  size_t bytes() const { return row_stride() * rows.width(); }

 private:
  size_t row_stride() const {
    return (row_bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
  }
};

// A part of a parameter inside a chunk.
struct Piece {
  int64_t param = 0;
  int64_t first_element = 0;  // a multiple of the shape's split_elements
  int64_t num_elements = 0;
  size_t offset_bytes = 0;  // from the start of the chunk's part of a moment's row
};

struct Chunk {
  size_t block = 0;
  Rows rows;
  size_t begin_bytes = 0;  // in a moment's row
  size_t bytes = 0;        // of a moment's row
  std::vector<Piece> pieces;

  size_t slot_bytes() const { return bytes * rows.width(); }
  // Where a row begins in the slot.
  size_t row_offset(int row) const { return bytes * static_cast<size_t>(row); }
};

// Packs the parameters into blocks whose rows together fill a power of two from below, as far as
// the parameters' sizes allow: pinned memory comes in such sizes, of at least `slab_bytes` and,
// unless a parameter needs more, at most 16 GiB. What is less than `slab_bytes` makes a last block.
// Parameters with different rows never share a block. Where parts larger than kSplitElements stay
// whole, the parameters keep their order: from layer to layer a model alternates between matrices
// whose update takes long and such that are bound by their copies.
SWAPLINE_API std::vector<Block> plan_blocks(std::span<const StateShape> shapes, size_t slab_bytes);

struct ArenaOptions {
  int64_t times = 16;      // the arena is at most total / times
  size_t arena_bytes = 0;  // a further bound; 0: none
  int num_slots = 3;
  // Memory beside the slots, within the bounds too: in slots, and what no slot's size changes.
  double scratch_per_slot = 0;
  size_t scratch_bytes = 0;
  double link_bytes_per_s = 25e9;
  double copy_latency_s = 10e-6;
};

struct ArenaPlan {
  size_t slot_bytes = 0;
  bool is_bound_raised = false;  // the bound was below what the pipeline needs
};

// Sizes one slot. A pipeline of n chunks of c bytes takes total / BW + n · latency plus the first
// load and the last store, c / BW each: least at c = √(total · latency · BW). Two rows a chunk are
// counted on. Near it the time hardly changes, so a chunk is smaller as far as that costs no more
// than 0.2 %. The bounds come first.
SWAPLINE_API ArenaPlan plan_arena(std::span<const Block> blocks,
                                  size_t total_state_bytes,
                                  const ArenaOptions& options);

// Cuts every block into chunks that fit a slot: of equal bytes, or full ones where what must stay
// whole is larger than kSplitElements. Each element of each parameter is in exactly one chunk.
// Whole parts take long to update, the others are bound by their copies: the chunks of these two
// kinds of blocks are mixed evenly, so that the one's updates hide the other's copies.
// Requires: slot_bytes from plan_arena on these blocks.
SWAPLINE_API std::vector<Chunk> cut_chunks(std::span<const Block> blocks, size_t slot_bytes);

}  // namespace swapline
