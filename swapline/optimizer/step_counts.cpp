// Counting in two places.
#include "swapline/optimizer/step_counts.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace swapline::detail {
namespace {

at::TensorOptions fp32() {
  return at::TensorOptions().dtype(at::kFloat);
}

}  // namespace

void StepCounts::add(size_t num) {
  if (num == 0) {
    return;
  }
  to_host();
  blocks_.push_back(at::zeros({static_cast<int64_t>(num)}, fp32()));
  for (size_t i = 0; i < num; ++i) {
    places_.emplace_back(blocks_.size() - 1, static_cast<int64_t>(i));
  }
}

void StepCounts::truncate(size_t num_params) {
  if (num_params == size()) {
    return;
  }
  to_host();
  places_.resize(num_params);
}

float& StepCounts::value(size_t param) {
  const auto [block, index] = places_[param];
  return blocks_[block].mutable_data_ptr<float>()[index];
}

at::Tensor StepCounts::tensor(size_t param) const {
  const auto [block, index] = places_[param];
  return blocks_[block].select(0, index);
}

void StepCounts::to_device() {
  if (!is_on_host()) {
    return;
  }
  const at::Tensor host = at::empty({static_cast<int64_t>(size())}, fp32());
  auto* const values = host.mutable_data_ptr<float>();
  for (size_t i = 0; i < size(); ++i) {
    values[i] = value(i);
  }
  counts_ = host.to(device_);
}

void StepCounts::to_host() {
  if (is_on_host()) {
    return;
  }
  const at::Tensor host = counts_.cpu();
  for (size_t i = 0; i < size(); ++i) {
    value(i) = host.const_data_ptr<float>()[i];
  }
  counts_.reset();
  mask_.reset();
  counted_.clear();
}

void StepCounts::count(std::span<const size_t> params) {
  if (!mask_.defined() ||
      !std::equal(params.begin(), params.end(), counted_.begin(), counted_.end())) {
    counted_.assign(params.begin(), params.end());
    const at::Tensor host = at::zeros({static_cast<int64_t>(size())}, fp32());
    for (const size_t param : params) {
      host.mutable_data_ptr<float>()[param] = 1;
    }
    mask_ = host.to(device_);
  }
  counts_.add_(mask_);
}

void StepCounts::uncount(const at::Tensor& found_inf) {
  counts_.addcmul_(mask_, found_inf.reshape({}), -1);
}

at::Tensor StepCounts::on_device(size_t param) const {
  return counts_.select(0, static_cast<int64_t>(param));
}

}  // namespace swapline::detail
