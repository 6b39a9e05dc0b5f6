// Allocation and zeroing of the host arena, and its tensors.
#include "swapline/optimizer/host_states.h"

#include "swapline/optimizer/mapped_memory.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

namespace swapline::detail {

void HostStates::add(std::span<const StateShape> shapes, size_t zeros_bytes) {
  if (shapes.empty()) {
    return;
  }
  std::vector<Block> layouts = plan_blocks(shapes, context_->options().host.slab_bytes);
  std::vector<std::shared_ptr<Memory>> blocks;
  size_t longest = 0;
  for (const auto& layout : layouts) {
    auto memory = std::make_shared<Memory>();
    memory->context = context_;
    memory->bytes = context_->host().allocate(layout.bytes());
    memory->bytes.wait_for_uses();
    longest = std::max(longest, layout.bytes());
    blocks.push_back(std::move(memory));
  }

  auto& copies = context_->copies();
  const auto zeros = at::zeros({static_cast<int64_t>(std::min(longest, zeros_bytes))},
                               at::TensorOptions().dtype(at::kByte).device(context_->device()));
  context_->note_device_memory(zeros.storage(), MemoryKind::kOptimizerStates);
  const SharedEvent zeroed = record_event(copies.compute_stream());
  context_->order().make_wait(copies.d2h_stream(), *zeroed, Wait::kSwapOutAfterProducer);
  try {
    for (const auto& block : blocks) {
      zero(*block, zeros);
    }
  } catch (...) {
    copies.d2h_stream().synchronize();
    throw;
  }
  copies.d2h_stream().synchronize();

  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const auto& [shape, offset] : layouts[i].placements) {
      places_[shape.param] = {layouts_.size(), offset};
      state_bytes_ += shape.bytes();
    }
    layouts_.push_back(std::move(layouts[i]));
    blocks_.push_back(std::move(blocks[i]));
  }
}

bool HostStates::truncate(int64_t num_params) {
  const size_t num_before = layouts_.size();
  const auto is_late = [&](const Placement& placement) {
    return placement.shape.param >= num_params;
  };
  while (
      !layouts_.empty() &&
      std::all_of(layouts_.back().placements.begin(), layouts_.back().placements.end(), is_late)) {
    for (const auto& [shape, offset] : layouts_.back().placements) {
      places_.erase(shape.param);
      state_bytes_ -= shape.bytes();
    }
    layouts_.pop_back();
    blocks_.pop_back();
  }
  return layouts_.size() < num_before;
}

void HostStates::zero(Memory& memory, const at::Tensor& zeros) const {
  const size_t step = zeros.storage().nbytes();
  const size_t all = memory.bytes.bytes();
  for (size_t begin = 0; begin < all; begin += step) {
    context_->copies().copy_out(
        zeros.storage(), memory.bytes, {0, begin, std::min(step, all - begin)});
  }
}

at::Tensor HostStates::mapped(size_t block, int row, size_t begin, size_t bytes) const {
  return map_pinned(data(block, layouts_[block].row_begin(row) + begin),
                    bytes,
                    context_->device(),
                    blocks_[block]);
}

at::Tensor HostStates::tensor(int64_t param,
                              int row,
                              at::IntArrayRef sizes,
                              at::IntArrayRef strides,
                              at::ScalarType dtype) const {
  const Place& place = places_.at(param);
  const Block& layout = layouts_[place.block];
  void* const begin =
      data(place.block, layout.row_begin(row) + place.offset_bytes * layout.rows.scale(row));
  // A storage of its own, as large as the tensor: whoever saves it saves no more.
  return at::from_blob(
      begin,
      sizes,
      strides,
      [memory = blocks_[place.block]](void*) {},
      at::TensorOptions().dtype(dtype).device(at::kCPU));
}

}  // namespace swapline::detail
