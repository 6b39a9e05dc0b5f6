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
  size_t longest_row = 0;
  for (const auto& layout : layouts) {
    auto memory = std::make_shared<Memory>();
    memory->context = context_;
    for (int row = 0; row < layout.rows.count(); ++row) {
      const size_t bytes = layout.row_bytes * layout.rows.scale(row);
      memory->rows.push_back(context_->host().allocate(bytes));
      memory->rows.back().wait_for_uses();
      longest_row = std::max(longest_row, bytes);
    }
    blocks.push_back(std::move(memory));
  }

  auto& copies = context_->copies();
  const auto zeros = at::zeros({static_cast<int64_t>(std::min(longest_row, zeros_bytes))},
                               at::TensorOptions().dtype(at::kByte).device(context_->device()));
  context_->note_device_memory(zeros.storage(), MemoryKind::kOptimizerStates);
  const SharedEvent zeroed = record_event(copies.compute_stream());
  context_->order().make_wait(copies.d2h_stream(), *zeroed, Wait::kSwapOutAfterProducer);
  try {
    for (size_t i = 0; i < blocks.size(); ++i) {
      zero(*blocks[i], layouts[i], zeros);
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

void HostStates::zero(Memory& memory, const Block& layout, const at::Tensor& zeros) const {
  const size_t step = zeros.storage().nbytes();
  for (int row = 0; row < layout.rows.count(); ++row) {
    const size_t bytes = layout.row_bytes * layout.rows.scale(row);
    for (size_t begin = 0; begin < bytes; begin += step) {
      context_->copies().copy_out(zeros.storage(),
                                  0,
                                  memory.rows[static_cast<size_t>(row)],
                                  begin,
                                  std::min(step, bytes - begin));
    }
  }
}

at::Tensor HostStates::mapped(size_t block, int row, size_t begin, size_t bytes) const {
  const std::shared_ptr<Memory>& memory = blocks_[block];
  char* const data = static_cast<char*>(memory->rows[static_cast<size_t>(row)].data());
  return map_pinned(data + begin, bytes, context_->device(), memory);
}

at::Tensor HostStates::tensor(int64_t param,
                              int row,
                              at::IntArrayRef sizes,
                              at::IntArrayRef strides,
                              at::ScalarType dtype) const {
  const Place& place = places_.at(param);
  std::shared_ptr<Memory> memory = blocks_[place.block];
  const size_t offset = place.offset_bytes * layouts_[place.block].rows.scale(row);
  void* const data = static_cast<char*>(memory->rows[static_cast<size_t>(row)].data()) + offset;
  return at::from_blob(
      data, sizes, strides, [memory](void*) {}, at::TensorOptions().dtype(dtype).device(at::kCPU));
}

}  // namespace swapline::detail
