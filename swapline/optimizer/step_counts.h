// How many updates each parameter has seen, as fp32 like torch's `step`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace swapline::detail {

// The counts are on the host, where every update adds one. When an update may turn out to be
// skipped (GradScaling::found_inf) only the device can count: then the counts move there, into one
// small tensor, and come back with the next to_host().
class StepCounts {
 public:
  explicit StepCounts(c10::Device device) : device_(device) {}

  // Counts of 0 for `num` more parameters.
  void add(size_t num);
  void truncate(size_t num_params);
  size_t size() const { return places_.size(); }

  // Requires: is_on_host(). The tensors are views of the counts, so the user may change them.
  float& value(size_t param);
  at::Tensor tensor(size_t param) const;

  bool is_on_host() const { return !counts_.defined(); }
  // Moves the counts to the device, in the order of the current stream.
  void to_device();
  // Moves them back. Blocks the calling thread.
  void to_host();

  // On the device: adds one for each of `params`, and takes it back where an update was skipped.
  void count(std::span<const size_t> params);
  void uncount(const at::Tensor& found_inf);
  at::Tensor on_device(size_t param) const;

 private:
  std::vector<at::Tensor> blocks_;                  // fp32 [number of parameters added at once]
  std::vector<std::pair<size_t, int64_t>> places_;  // of each parameter: block, index
  c10::Device device_;
  at::Tensor counts_;  // fp32 [size()] on the device; undefined: on the host
  std::vector<size_t> counted_;
  at::Tensor mask_;  // fp32 [size()] on the device: 1 for `counted_`
};

}  // namespace swapline::detail
