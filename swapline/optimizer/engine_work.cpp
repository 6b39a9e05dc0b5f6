// A step: what is to be updated, and how the placement's states pass by the update.
#include "swapline/optimizer/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace swapline::detail {
namespace {

constexpr size_t kMostResidentScratchBytes = size_t{64} << 20;

// On `device`, as GradScaler keeps one for each.
at::Tensor checked_scalar(const at::Tensor& scalar, const char* name, c10::Device device) {
  if (!scalar.defined()) {
    return scalar;
  }
  TORCH_CHECK(scalar.numel() == 1 && scalar.scalar_type() == at::kFloat,
              name,
              " must be one float, got ",
              scalar.toString(),
              " of sizes ",
              scalar.sizes());
  return scalar.to(device, /*non_blocking=*/true);
}

// Elements [first, first + num) of a dense tensor in the order of its memory, as a vector.
at::Tensor flat_part(const at::Tensor& dense, int64_t first, int64_t num) {
  return at::as_strided(dense, {num}, {1}, dense.storage_offset() + first);
}

}  // namespace

void OptimizerEngine::begin_step(const GradScaling& scaling) {
  has_updated_ = false;
  has_counted_ = false;
  check_usable(scaling);
  scaling_ = {checked_scalar(scaling.grad_scale, "grad_scale", device()),
              checked_scalar(scaling.found_inf, "found_inf", device())};
  work_.assign(params_.size(), {});
  std::vector<size_t> with_grad;
  for (size_t i = 0; i < params_.size(); ++i) {
    work_[i].grad = params_.checked_grad(i);
    if (has_work(i)) {
      with_grad.push_back(i);
    }
  }
  if (host_) {
    add_host_states(with_grad);
  }
  for (const size_t i : with_grad) {
    if (!is_on_host(i) && params_[i].tensor.numel() > 0) {
      for (const auto& state : resident_.of(i, params_[i].tensor, row_dtypes_[i])) {
        if (context_) {
          context_->note_device_memory(state.storage(), MemoryKind::kOptimizerStates);
        }
      }
    }
  }
}

bool OptimizerEngine::update() {
  try {
    make_step_tensors();
    const auto chunks =
        host_ ? chunks_where([&](size_t param) { return has_work(param); }) : std::vector<size_t>();
    const auto residents = resident_work();
    // All at once: no update can fail for want of memory after another has begun.
    scratch_ = make_scratch(std::max(scratch_bytes_for(chunks), resident_scratch_bytes(residents)));
    if (host_) {
      update_on_host(chunks);
    }
    update_resident(residents);
    for (size_t i = 0; i < params_.size(); ++i) {
      if (has_work(i) && params_[i].tensor.numel() == 0) {
        count(i, 0);
      }
    }
    if (!steps_.is_on_host() && scaling_.found_inf.defined()) {
      steps_.uncount(scaling_.found_inf);
    }
  } catch (const std::exception& error) {
    fail(error);
    TORCH_CHECK(failure_.empty(), failure_);
    throw;
  }
  end_step();
  return has_updated_;
}

// Where the host counts, one scalar on the device for each number of steps that occurs: usually one
// in all.
void OptimizerEngine::make_step_tensors() {
  if (scaling_.found_inf.defined()) {
    steps_.to_device();
  }
  std::vector<size_t> counted;
  std::map<float, at::Tensor> by_value;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!has_work(i)) {
      continue;
    }
    counted.push_back(i);
    if (!steps_.is_on_host() || work_[i].grad.numel() == 0 || !rule_->reads_step(i)) {
      continue;
    }
    const float value = steps_.value(i) + 1;
    at::Tensor& scalar = by_value[value];
    if (!scalar.defined()) {
      scalar = at::full({}, value, at::TensorOptions().dtype(at::kFloat).device(device()));
    }
    work_[i].step = scalar;
  }
  if (!steps_.is_on_host()) {
    steps_.count(counted);
    has_counted_ = true;
    for (const size_t i : counted) {
      work_[i].step = steps_.on_device(i);
    }
  }
}

std::vector<size_t> OptimizerEngine::chunks_where(
    const std::function<bool(size_t)>& is_wanted) const {
  std::vector<size_t> numbers;
  const auto chunks = pipeline_->chunks();
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
void OptimizerEngine::count(size_t param, int64_t num_elements) {
  ListedParam& entry = params_[param];
  work_[param].num_updated += num_elements;
  if (work_[param].num_updated == entry.tensor.numel()) {
    if (steps_.is_on_host()) {
      steps_.value(param) += 1;
    }
    entry.has_state = true;
    // The update went through views that autograd does not know.
    entry.tensor.unsafeGetTensorImpl()->bump_version();
  }
}

void OptimizerEngine::add_operands(size_t param,
                                   at::Tensor tensor,
                                   at::Tensor grad,
                                   std::vector<at::Tensor> states) {
  Operands operands;
  operands.param = param;
  operands.tensor = std::move(tensor);
  operands.grad = std::move(grad);
  operands.states = std::move(states);
  operands.step = work_[param].step;
  operands.step_number = steps_.value(param) + 1;
  operands.is_first = !params_[param].has_state;
  rule_->add(std::move(operands));
}

size_t OptimizerEngine::scratch_bytes(size_t param) const {
  const Part whole = {param, params_[param].tensor.numel()};
  return rule_->scratch_bytes({&whole, 1});
}

size_t OptimizerEngine::scratch_bytes(const Chunk& chunk,
                                      const std::function<bool(size_t)>& is_wanted) const {
  std::vector<Part> parts;
  for (const Piece& piece : chunk.pieces) {
    const auto i = static_cast<size_t>(piece.param);
    if (is_wanted(i)) {
      parts.push_back({i, piece.num_elements});
    }
  }
  return rule_->scratch_bytes(parts);
}

Scratch OptimizerEngine::make_scratch(size_t bytes) {
  if (bytes == 0) {
    return {};
  }
  auto tensor = at::empty({static_cast<int64_t>(bytes)},
                          at::TensorOptions().dtype(at::kByte).device(device()));
  if (context_) {
    context_->note_device_memory(tensor.storage(), MemoryKind::kOptimizerStates);
  }
  return Scratch(std::move(tensor));
}

size_t OptimizerEngine::scratch_bytes_for(const std::vector<size_t>& chunks) const {
  size_t most = 0;
  for (const size_t chunk : chunks) {
    most = std::max(most, scratch_bytes(pipeline_->chunks()[chunk], [&](size_t param) {
                      return has_work(param);
                    }));
  }
  return most;
}

std::vector<size_t> OptimizerEngine::resident_work() const {
  std::vector<size_t> wanted;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (has_work(i) && !is_on_host(i) && params_[i].tensor.numel() > 0) {
      wanted.push_back(i);
    }
  }
  return wanted;
}

// For all at once, or for launches of bounded size.
size_t OptimizerEngine::resident_scratch_bytes(const std::vector<size_t>& wanted) const {
  std::vector<Part> parts;
  size_t largest = 0;
  for (const size_t i : wanted) {
    parts.push_back({i, params_[i].tensor.numel()});
    largest = std::max(largest, scratch_bytes(i));
  }
  return std::min(rule_->scratch_bytes(parts), std::max(largest, kMostResidentScratchBytes));
}

void OptimizerEngine::update_resident(const std::vector<size_t>& wanted) {
  if (wanted.empty()) {
    return;
  }
  const size_t room = resident_scratch_bytes(wanted);
  has_updated_ = true;
  size_t used = 0;
  for (const size_t i : wanted) {
    const size_t bytes = scratch_bytes(i);
    if (used + bytes > room) {
      rule_->launch(scaling_, scratch_);
      used = 0;
    }
    used += bytes;
    add_operands(
        i, params_[i].tensor, work_[i].grad, resident_.of(i, params_[i].tensor, row_dtypes_[i]));
  }
  rule_->launch(scaling_, scratch_);
  for (const size_t i : wanted) {
    count(i, params_[i].tensor.numel());
  }
}

void OptimizerEngine::update_on_host(const std::vector<size_t>& chunks) {
  pipeline_->run(chunks, [&](const Chunk& chunk, std::span<const at::Tensor> rows) {
    update_chunk(chunk, rows);
  });
  if (pipeline_->slots().num_shortages() > 0 && !has_warned_short_) {
    has_warned_short_ = true;
    TORCH_WARN("the device has no room for ", options_.num_slots, " chunks: step() is slower");
  }
}

void OptimizerEngine::update_chunk(const Chunk& chunk, std::span<const at::Tensor> rows) {
  std::vector<at::Tensor> typed_rows(rows.size());
  for (const Piece& piece : chunk.pieces) {
    const auto i = static_cast<size_t>(piece.param);
    if (!has_work(i)) {
      continue;
    }
    std::vector<at::Tensor> states;
    const at::Tensor& param = params_[i].tensor;
    const at::Tensor& grad = work_[i].grad;
    // Whole parameters go in as they are, beside states of their shape: a third fewer views.
    const bool is_whole = piece.num_elements == param.numel() && param.strides() == grad.strides();
    states.reserve(row_dtypes_[i].size());
    for (const at::ScalarType dtype : row_dtypes_[i]) {
      const size_t row = states.size();
      at::Tensor& typed = typed_rows[row];
      if (!typed.defined() || typed.scalar_type() != dtype) {
        typed = rows[row].view(dtype);
      }
      const size_t offset = piece.offset_bytes * chunk.rows.scale(static_cast<int>(row));
      const auto first = static_cast<int64_t>(offset / c10::elementSize(dtype));
      states.push_back(
          is_whole ? at::as_strided(
                         typed, param.sizes(), param.strides(), typed.storage_offset() + first)
                   : flat_part(typed, first, piece.num_elements));
    }
    if (is_whole) {
      add_operands(i, param, grad, std::move(states));
    } else {
      add_operands(i,
                   flat_part(param, piece.first_element, piece.num_elements),
                   flat_part(grad, piece.first_element, piece.num_elements),
                   std::move(states));
    }
  }
  has_updated_ = true;  // also when the launch throws: how far it came is not known
  rule_->launch(scaling_, scratch_);
  for (const Piece& piece : chunk.pieces) {
    if (has_work(static_cast<size_t>(piece.param))) {
      count(static_cast<size_t>(piece.param), piece.num_elements);
    }
  }
}

}  // namespace swapline::detail
