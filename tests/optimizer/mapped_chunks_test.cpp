// Properties of the cut between mapped and other chunks, over random sets of parameters.
#include "swapline/optimizer/mapped_chunks.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>

namespace swapline {
namespace {

std::vector<StateShape> any_shapes() {
  const auto sizes = *rc::gen::nonEmpty(rc::gen::container<std::vector<int64_t>>(
      rc::gen::oneOf(rc::gen::inRange<int64_t>(1, 300), rc::gen::inRange<int64_t>(1, 100000))));
  std::vector<StateShape> shapes;
  for (const int64_t numel : sizes) {
    StateShape shape;
    shape.param = static_cast<int64_t>(shapes.size());
    shape.numel = numel;
    shape.item_bytes = *rc::gen::element<size_t>(2, 4, 8);
    shape.num_states = *rc::gen::element(2, 2, 3);
    shape.master_bytes = *rc::gen::element<size_t>(0, 1, 2) * shape.item_bytes;
    shape.split_elements = *rc::gen::element<int64_t>(64, 64, 640, numel);
    shapes.push_back(shape);
  }
  return shapes;
}

size_t bytes_of(const std::vector<StateShape>& shapes) {
  size_t bytes = 0;
  for (const auto& shape : shapes) {
    bytes += shape.bytes();
  }
  return bytes;
}

struct Plan {
  std::vector<Block> blocks;
  size_t slot_bytes = 0;
};

Plan plan_of(const std::vector<StateShape>& shapes) {
  Plan plan;
  plan.blocks = plan_blocks(shapes, 65536);
  ArenaOptions options;
  options.times = *rc::gen::inRange<int64_t>(1, 100);
  plan.slot_bytes = plan_arena(plan.blocks, bytes_of(shapes), options).slot_bytes;
  return plan;
}

RC_GTEST_PROP(MappedChunks, EachElementStaysInExactlyOneChunk, ()) {
  const auto shapes = any_shapes();
  const Plan plan = plan_of(shapes);
  const size_t most = *rc::gen::inRange<size_t>(0, bytes_of(shapes) + 1000);
  const auto parts = take_mapped(
      plan.blocks, cut_chunks(plan.blocks, plan.slot_bytes), most, *rc::gen::arbitrary<bool>());
  std::map<int64_t, int64_t> next;
  std::map<size_t, size_t> row_end;
  for (const auto* chunks : {&parts.mapped, &parts.rest}) {
    for (const Chunk& chunk : *chunks) {
      RC_ASSERT(chunk.bytes > 0u);
      RC_ASSERT(chunk.begin_bytes == row_end[chunk.block]);
      row_end[chunk.block] = chunk.begin_bytes + chunk.bytes;
      for (const Piece& piece : chunk.pieces) {
        const StateShape& shape = shapes[static_cast<size_t>(piece.param)];
        RC_ASSERT(piece.num_elements > 0);
        RC_ASSERT(piece.first_element == next[piece.param]);
        RC_ASSERT(piece.first_element % shape.split_elements == 0);
        RC_ASSERT(piece.offset_bytes % shape.item_bytes == 0u);
        const size_t bytes = static_cast<size_t>(piece.num_elements) * shape.item_bytes;
        RC_ASSERT(piece.offset_bytes + bytes <= chunk.bytes);
        next[piece.param] += piece.num_elements;
      }
    }
  }
  for (const auto& shape : shapes) {
    RC_ASSERT(next[shape.param] == shape.numel);
  }
}

RC_GTEST_PROP(MappedChunks, AsManyBytesAreMappedAsFit, ()) {
  const auto shapes = any_shapes();
  const Plan plan = plan_of(shapes);
  const size_t most = *rc::gen::inRange<size_t>(0, bytes_of(shapes) + 1000);
  const auto parts = take_mapped(plan.blocks, cut_chunks(plan.blocks, plan.slot_bytes), most, true);
  size_t counted = 0;
  for (const Chunk& chunk : parts.mapped) {
    for (const Piece& piece : chunk.pieces) {
      counted += static_cast<size_t>(piece.num_elements) *
                 shapes[static_cast<size_t>(piece.param)].bytes_per_element();
    }
  }
  RC_ASSERT(parts.mapped_bytes == counted);
  RC_ASSERT(counted <= most);
  if (parts.rest.empty()) {
    RC_ASSERT(counted == bytes_of(shapes));
    return;
  }
  const Piece& next = parts.rest.front().pieces.front();
  const StateShape& shape = shapes[static_cast<size_t>(next.param)];
  const auto part =
      static_cast<size_t>(std::min(shape.split_elements, shape.numel - next.first_element));
  RC_ASSERT(most - counted < part * shape.bytes_per_element());
}

RC_GTEST_PROP(MappedChunks, JoinedChunksAreOneForEachBlockAndOthersFitASlot, ()) {
  const auto shapes = any_shapes();
  const Plan plan = plan_of(shapes);
  const size_t most = *rc::gen::inRange<size_t>(0, bytes_of(shapes) + 1000);
  const auto chunks = cut_chunks(plan.blocks, plan.slot_bytes);
  RC_ASSERT(take_mapped(plan.blocks, chunks, most, true).mapped.size() <= plan.blocks.size());
  const auto apart = take_mapped(plan.blocks, chunks, most, false);
  RC_ASSERT(apart.mapped.size() + apart.rest.size() <= chunks.size() + 1);
  for (const auto* some : {&apart.mapped, &apart.rest}) {
    for (const Chunk& chunk : *some) {
      RC_ASSERT(chunk.slot_bytes() <= plan.slot_bytes);
    }
  }
}

TEST(MappedChunksFigures, BytesAreMetToSixtyFourElements) {
  const std::vector<StateShape> shapes = {{0, 1000, 4, 2}};
  const auto blocks = plan_blocks(shapes, 65536);
  const auto mapped = [&](size_t most) {
    return take_mapped(blocks, cut_chunks(blocks, 1024), most, true).mapped_bytes;
  };
  EXPECT_EQ(mapped(0), 0u);
  EXPECT_EQ(mapped(511), 0u);
  EXPECT_EQ(mapped(512), 512u);
  EXPECT_EQ(mapped(5120), 5120u);
  EXPECT_EQ(mapped(5631), 5120u);
  EXPECT_EQ(mapped(7999), 7680u);
  EXPECT_EQ(mapped(8000), 8000u);
  EXPECT_EQ(mapped(SIZE_MAX), 8000u);
}

}  // namespace
}  // namespace swapline
