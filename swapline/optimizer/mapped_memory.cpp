// The device's own answer, asked for one address; no link with its runtime.
#include "swapline/optimizer/mapped_memory.h"

#include <utility>

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

namespace swapline::detail {

// Under unified addressing (CUDA, the simulated device) a pinned address is an address of every
// device, and the runtime knows it. Ascend has memory of another kind for this, which very few
// operators take: not those of an update here.
std::string why_not_mapped(const void* pinned, c10::Device device) {
  if (c10::Dispatcher::singleton().findSchema({"npu::empty_with_swapped_memory", ""})) {
    return "its swapped memory (npu::empty_with_swapped_memory) is not taken by the operators of "
           "the update";
  }
  try {
    const c10::Device found =
        at::globalContext().getDeviceFromPtr(const_cast<void*>(pinned), device.type());
    return found.type() == device.type() ? "" : "its runtime takes pinned memory for the host's";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

at::Tensor map_pinned(void* pinned, size_t bytes, c10::Device device, std::shared_ptr<void> owner) {
  return at::from_blob(
      pinned,
      {static_cast<int64_t>(bytes)},
      [owner = std::move(owner)](void*) {},
      at::TensorOptions().dtype(at::kByte).device(device),
      device);
}

}  // namespace swapline::detail
