// The work of a step: what is to be updated, and how the placement's states pass by the kernel.
#include "swapline/optimizer/adam_impl.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace swapline {

using detail::AdamParam;
using detail::flat_part;

namespace {

constexpr size_t kMostResidentScratchBytes = size_t{64} << 20;

}  // namespace

void Adam::Impl::collect_work() {
  work.assign(params.size(), {});
  for (size_t i = 0; i < params.size(); ++i) {
    work[i].grad = params.checked_grad(i);
  }
}

// One scalar on the device for each number of steps that occurs: usually one in all. The portable
// kernel takes the numbers from the host.
void Adam::Impl::make_step_tensors() {
  std::map<float, at::Tensor> by_value;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!work[i].grad.defined() || work[i].grad.numel() == 0 ||
        !update.is_fused(settings[params[i].group])) {
      continue;
    }
    const float value = params.step(i) + 1;
    at::Tensor& scalar = by_value[value];
    if (!scalar.defined()) {
      scalar = at::full({}, value, at::TensorOptions().dtype(at::kFloat).device(device));
    }
    work[i].step = scalar;
  }
}

std::vector<size_t> Adam::Impl::chunks_where(const std::function<bool(size_t)>& is_wanted) const {
  std::vector<size_t> numbers;
  const auto chunks = pipeline->chunks();
  for (size_t k = 0; k < chunks.size(); ++k) {
    if (std::any_of(chunks[k].pieces.begin(), chunks[k].pieces.end(), [&](const Piece& piece) {
          return is_wanted(static_cast<size_t>(piece.param));
        })) {
      numbers.push_back(k);
    }
  }
  return numbers;
}

// Notes that the update of some elements is enqueued; the last of a parameter counts as its step.
void Adam::Impl::count(size_t param, int64_t num_elements) {
  AdamParam& entry = params[param];
  work[param].num_updated += num_elements;
  if (work[param].num_updated == entry.tensor.numel()) {
    params.step(param) += 1;
    entry.has_state = true;
    // The update went through views that autograd does not know.
    entry.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

// Parts of a parameter, its gradient and its states, all in the same order of memory.
void Adam::Impl::add_operands(size_t param,
                              at::Tensor tensor,
                              at::Tensor grad,
                              std::vector<at::Tensor> states) {
  detail::AdamOperands operands;
  operands.param = std::move(tensor);
  operands.grad = std::move(grad);
  if (dtypes[param].has_master) {
    operands.master = std::move(states.back());
    operands.is_master_new = !params[param].has_state;
    states.pop_back();
  }
  operands.moments = std::move(states);
  operands.step = work[param].step;
  operands.step_number = params.step(param) + 1;
  update.add(params[param].group, dtypes[param], std::move(operands));
}

size_t Adam::Impl::scratch_bytes(size_t param, int64_t num_elements) const {
  return static_cast<size_t>(detail::Scratch::padded(num_elements)) *
         update.scratch_bytes(dtypes[param], num_moments(param), settings[params[param].group]);
}

size_t Adam::Impl::scratch_bytes(const Chunk& chunk,
                                 const std::function<bool(size_t)>& is_wanted) const {
  size_t bytes = 0;
  for (const Piece& piece : chunk.pieces) {
    const auto i = static_cast<size_t>(piece.param);
    bytes += is_wanted(i) ? scratch_bytes(i, piece.num_elements) : 0;
  }
  return bytes;
}

detail::Scratch Adam::Impl::make_scratch(size_t bytes) {
  if (bytes == 0) {
    return {};
  }
  auto tensor =
      at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device));
  if (context) {
    context->note_device_memory(tensor.storage(), MemoryKind::kOptimizerStates);
  }
  return detail::Scratch(std::move(tensor));
}

// All at once where nothing is cast; else in launches whose scratch is bounded.
void Adam::Impl::update_resident() {
  std::vector<size_t> wanted;
  size_t all_bytes = 0;
  size_t largest_bytes = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    if (work[i].grad.defined() && params[i].tensor.numel() > 0) {
      wanted.push_back(i);
      const size_t bytes = scratch_bytes(i, params[i].tensor.numel());
      all_bytes += bytes;
      largest_bytes = std::max(largest_bytes, bytes);
      for (const auto& state : resident.of(i, params[i].tensor, rows(i))) {
        if (context) {
          context->note_device_memory(state.storage(), MemoryKind::kOptimizerStates);
        }
      }
    }
  }
  const size_t room = std::min(all_bytes, std::max(largest_bytes, kMostResidentScratchBytes));
  scratch = make_scratch(room);
  has_updated = true;
  size_t used = 0;
  for (const size_t i : wanted) {
    const size_t bytes = scratch_bytes(i, params[i].tensor.numel());
    if (used + bytes > room) {
      update.launch(settings, scratch);
      used = 0;
    }
    used += bytes;
    add_operands(i, params[i].tensor, work[i].grad, resident.of(i, params[i].tensor, rows(i)));
  }
  update.launch(settings, scratch);
  for (size_t i = 0; i < params.size(); ++i) {
    if (work[i].grad.defined()) {
      count(i, params[i].tensor.numel());
    }
  }
}

void Adam::Impl::update_swapped() {
  const auto has_grad = [&](size_t param) { return work[param].grad.defined(); };
  const auto chunks = chunks_where(has_grad);
  size_t most_scratch_bytes = 0;
  for (const size_t chunk : chunks) {
    most_scratch_bytes =
        std::max(most_scratch_bytes, scratch_bytes(pipeline->chunks()[chunk], has_grad));
  }
  scratch = make_scratch(most_scratch_bytes);
  pipeline->run(chunks,
                [&](const Chunk& chunk, const at::Tensor& slot) { update_chunk(chunk, slot); });
  for (size_t i = 0; i < params.size(); ++i) {
    if (work[i].grad.defined() && params[i].tensor.numel() == 0) {
      count(i, 0);
    }
  }
  const auto shortages = pipeline->slots().num_shortages();
  if (shortages > 0 && !has_warned_short) {
    has_warned_short = true;
    TORCH_WARN("the device has no room for ", options.num_slots, " chunks: step() is slower");
  }
}

void Adam::Impl::update_chunk(const Chunk& chunk, const at::Tensor& slot) {
  const auto used = slot.narrow(0, 0, static_cast<int64_t>(chunk.slot_bytes()));
  std::map<at::ScalarType, at::Tensor> typed_slot;
  for (const Piece& piece : chunk.pieces) {
    const auto i = static_cast<size_t>(piece.param);
    if (!work[i].grad.defined()) {
      continue;
    }
    std::vector<at::Tensor> states;
    for (const at::ScalarType dtype : rows(i)) {
      at::Tensor& typed = typed_slot[dtype];
      if (!typed.defined()) {
        typed = used.view(dtype);
      }
      const auto row = static_cast<int>(states.size());
      const size_t offset = chunk.row_offset(row) + piece.offset_bytes * chunk.rows.scale(row);
      const auto first = static_cast<int64_t>(offset / c10::elementSize(dtype));
      states.push_back(flat_part(typed, first, piece.num_elements));
    }
    add_operands(i,
                 flat_part(params[i].tensor, piece.first_element, piece.num_elements),
                 flat_part(work[i].grad, piece.first_element, piece.num_elements),
                 std::move(states));
  }
  has_updated = true;  // also when the launch throws: how far it came is not known
  update.launch(settings, scratch);
  for (const Piece& piece : chunk.pieces) {
    if (work[static_cast<size_t>(piece.param)].grad.defined()) {
      count(static_cast<size_t>(piece.param), piece.num_elements);
    }
  }
}

std::string Adam::Impl::progress() const {
  size_t num_whole = 0;
  size_t num_all = 0;
  std::string partly;
  for (size_t i = 0; i < work.size(); ++i) {
    if (!work[i].grad.defined()) {
      continue;
    }
    ++num_all;
    const int64_t numel = params[i].tensor.numel();
    if (numel > 0 && work[i].num_updated == numel) {
      ++num_whole;
    } else if (work[i].num_updated > 0) {
      partly += (partly.empty() ? "; in part: " : ", ") + params[i].name;
    }
  }
  return std::to_string(num_whole) + " of " + std::to_string(num_all) +
         " parameters had been updated" + partly;
}

}  // namespace swapline
