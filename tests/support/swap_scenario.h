// A few swaps under way at a time, as a model makes them, with the memory and the host buffers of
// one used by the next. Uses every wait of the swap core, on any device.
#pragma once

#include "swapline/copy/stream_order.h"
#include "swapline/swap/swap_context.h"
#include "swapline/swap/swap_group.h"

#include <memory>
#include <stdexcept>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

namespace swapline::testing {

inline void swap_back_and_forth(c10::Device device, const std::shared_ptr<StreamOrder>& order) {
  SwapContextOptions options;
  options.order = order;
  options.host.slab_bytes = size_t{256} << 10;  // one buffer
  SwapContext context(device, options);
  const auto on_device = at::TensorOptions().device(device);
  const auto swap_out = [](SwapGroup& group) {
    if (!group.swap_out()) {
      throw std::logic_error("the scenario's tensor was not swapped");
    }
  };
  for (int round = 0; round < 3; ++round) {
    at::Tensor tensor = at::full({1 << 16}, 1.0, on_device).mul_(2);
    SwapGroup group(context, {tensor});
    tensor.reset();
    swap_out(group);
    if (round == 1) {
      group.release_device_storage_when_done();
    } else {
      group.release_device_storage();
    }
    const at::Tensor reuses_the_block = at::full({1 << 16}, 3.0, on_device);
    at::Tensor scratch = reuses_the_block.mul(2);
    scratch.reset();
    group.swap_in();
    group.wait_swap_in();
    group.tensors().front().add_(1);
  }
  // The buffer of a copy that is still read goes to the next group at once.
  for (int i = 0; i < 2; ++i) {
    SwapGroup group(context, {at::full({1 << 16}, 4.0, on_device)});
    swap_out(group);
    group.release_device_storage_when_done();
    group.swap_in();
  }
  context.settle_all();
}

}  // namespace swapline::testing
