// Which chunks are updated in mapped host memory. Arithmetic only.
#pragma once

#include "swapline/export.h"
#include "swapline/optimizer/chunk_plan.h"

#include <cstddef>
#include <span>
#include <vector>

namespace swapline {

struct MappedChunks {
  std::vector<Chunk> mapped;
  std::vector<Chunk> rest;
  size_t mapped_bytes = 0;  // of elements of states, without padding
};

// Takes the first of `chunks`, cut_chunks() of `blocks`, as far as `most_bytes` of states reach;
// the last one taken is cut where a tensor may be cut. `join`: chunks taken from one block become
// one.
SWAPLINE_API MappedChunks take_mapped(std::span<const Block> blocks,
                                      std::vector<Chunk> chunks,
                                      size_t most_bytes,
                                      bool join);

}  // namespace swapline
