// Where optimizer states lie in host memory, and the chunks in which they pass through the device.
// Arithmetic only: no tensors, no memory.
//
// A block is one stretch of host memory per state, state-major: all of its parameters' exp_avg back
// to back, then (elsewhere) all their exp_avg_sq, and so on; every row is laid out alike. A chunk
// is a byte range of a block's rows, so it moves with one copy per state and direction.
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

// One parameter's states.
struct StateShape {
  int64_t param = 0;      // the caller's index
  int64_t numel = 0;      // > 0
  size_t item_bytes = 4;  // of one element of each state
  int num_states = 2;     // rows that it has a part in: 2, or 3 with amsgrad

  size_t bytes() const {
    return static_cast<size_t>(numel) * item_bytes * static_cast<size_t>(num_states);
  }
};

// A parameter's place in each row of a block.
struct Placement {
  StateShape shape;
  size_t offset_bytes = 0;  // a multiple of the block's unit
};

struct Block {
  int num_states = 0;
  size_t unit_bytes =
      0;                 // kSplitElements of the widest element in it: rows may be cut at multiples
  size_t row_bytes = 0;  // a multiple of unit_bytes
  std::vector<Placement> placements;  // by rising offset
};

// A part of a parameter inside a chunk.
struct Piece {
  int64_t param = 0;
  int64_t first_element = 0;  // a multiple of kSplitElements
  int64_t num_elements = 0;
  size_t offset_bytes = 0;  // from the chunk's start
};

struct Chunk {
  size_t block = 0;
  int num_states = 0;
  size_t begin_bytes = 0;  // in each row
  size_t bytes = 0;        // of each row
  std::vector<Piece> pieces;

  size_t slot_bytes() const { return bytes * static_cast<size_t>(num_states); }
};

// Packs the parameters into blocks whose rows fill a power of two from below (the sizes that pinned
// memory comes in), falling to `slab_bytes`; what is left makes a last, smaller block. Parameters
// with different numbers of states never share a block.
SWAPLINE_API std::vector<Block> plan_blocks(std::span<const StateShape> shapes, size_t slab_bytes);

struct ArenaOptions {
  int64_t times = 16;      // the arena is at most total / times
  size_t arena_bytes = 0;  // a further bound; 0: none
  int num_slots = 3;
  double link_bytes_per_s = 25e9;
  double copy_latency_s = 10e-6;
};

struct ArenaPlan {
  size_t slot_bytes = 0;
  bool is_bound_raised = false;  // the bound was below what the pipeline needs
};

// Sizes one slot. A pipeline of n chunks of c bytes takes total / BW + n · latency plus the first
// load and the last store, c / BW each: least at c = √(total · latency · BW). The bounds come
// first.
SWAPLINE_API ArenaPlan plan_arena(std::span<const Block> blocks,
                                  size_t total_state_bytes,
                                  const ArenaOptions& options);

// Cuts every block into chunks of equal bytes that fit a slot. Each element of each parameter is in
// exactly one chunk. Requires: slot_bytes from plan_arena on these blocks.
SWAPLINE_API std::vector<Chunk> cut_chunks(std::span<const Block> blocks, size_t slot_bytes);

}  // namespace swapline
