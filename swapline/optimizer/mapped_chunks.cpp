// A prefix of all states, to the last tensor that may be cut.
#include "swapline/optimizer/mapped_chunks.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace swapline {
namespace {

using Shapes = std::unordered_map<int64_t, StateShape>;

Shapes shapes_of(std::span<const Block> blocks) {
  Shapes shapes;
  for (const Block& block : blocks) {
    for (const Placement& placement : block.placements) {
      shapes[placement.shape.param] = placement.shape;
    }
  }
  return shapes;
}

size_t state_bytes(const Chunk& chunk, const Shapes& shapes) {
  size_t bytes = 0;
  for (const Piece& piece : chunk.pieces) {
    bytes += static_cast<size_t>(piece.num_elements) * shapes.at(piece.param).bytes_per_element();
  }
  return bytes;
}

// Where to cut a moment's row of the chunk so that at most `most_bytes` of states lie before; not
// all of them do.
size_t cut_at(const Chunk& chunk, const Shapes& shapes, size_t most_bytes) {
  for (const Piece& piece : chunk.pieces) {
    const StateShape& shape = shapes.at(piece.param);
    const auto fitting = static_cast<int64_t>(most_bytes / shape.bytes_per_element());
    if (fitting < piece.num_elements) {
      const int64_t taken = fitting / shape.split_elements * shape.split_elements;
      return piece.offset_bytes + static_cast<size_t>(taken) * shape.item_bytes;
    }
    most_bytes -= static_cast<size_t>(piece.num_elements) * shape.bytes_per_element();
  }
  return 0;
}

// Takes the part of the chunk behind `at`, in bytes of a moment's row, off it.
Chunk split(Chunk& chunk, size_t at, const Shapes& shapes) {
  Chunk rest = chunk;
  rest.begin_bytes += at;
  rest.bytes -= at;
  rest.pieces.clear();
  chunk.bytes = at;
  std::vector<Piece> before;
  for (Piece piece : chunk.pieces) {
    const size_t item_bytes = shapes.at(piece.param).item_bytes;
    const size_t end = piece.offset_bytes + static_cast<size_t>(piece.num_elements) * item_bytes;
    if (piece.offset_bytes < at) {
      before.push_back(piece);
      const size_t bytes = std::min(end, at) - piece.offset_bytes;
      before.back().num_elements = static_cast<int64_t>(bytes / item_bytes);
      piece.first_element += before.back().num_elements;
      piece.num_elements -= before.back().num_elements;
      piece.offset_bytes = at;
    }
    if (piece.num_elements > 0) {
      piece.offset_bytes -= at;
      rest.pieces.push_back(piece);
    }
  }
  chunk.pieces = std::move(before);
  return rest;
}

// Puts `next`, which begins where `chunk` ends, at its end.
void append(Chunk& chunk, const Chunk& next) {
  for (Piece piece : next.pieces) {
    piece.offset_bytes += chunk.bytes;
    Piece* const last = chunk.pieces.empty() ? nullptr : &chunk.pieces.back();
    if (last != nullptr && last->param == piece.param) {
      last->num_elements += piece.num_elements;
    } else {
      chunk.pieces.push_back(piece);
    }
  }
  chunk.bytes += next.bytes;
}

}  // namespace

MappedChunks take_mapped(std::span<const Block> blocks,
                         std::vector<Chunk> chunks,
                         size_t most_bytes,
                         bool join) {
  const Shapes shapes = shapes_of(blocks);
  MappedChunks result;
  size_t next = 0;
  const auto take = [&](Chunk chunk) {
    result.mapped_bytes += state_bytes(chunk, shapes);
    const auto before =
        std::find_if(result.mapped.begin(), result.mapped.end(), [&](const Chunk& candidate) {
          return join && candidate.block == chunk.block &&
                 candidate.begin_bytes + candidate.bytes == chunk.begin_bytes;
        });
    if (before != result.mapped.end()) {
      append(*before, chunk);
    } else {
      result.mapped.push_back(std::move(chunk));
    }
  };
  while (next < chunks.size() &&
         state_bytes(chunks[next], shapes) <= most_bytes - result.mapped_bytes) {
    take(std::move(chunks[next++]));
  }
  if (next < chunks.size()) {
    const size_t at = cut_at(chunks[next], shapes, most_bytes - result.mapped_bytes);
    if (at > 0) {
      Chunk rest = split(chunks[next], at, shapes);
      take(std::exchange(chunks[next], std::move(rest)));
    }
  }
  chunks.erase(chunks.begin(), chunks.begin() + static_cast<std::ptrdiff_t>(next));
  result.rest = std::move(chunks);
  return result;
}

}  // namespace swapline
