// Adam and AdamW whose states live in pinned host memory and stream through the device in step().
#pragma once

#include "swapline/export.h"
#include "swapline/optimizer/adam_settings.h"
#include "swapline/optimizer/step_times.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

struct AdamStats {
  int64_t num_chunks = 0;
  int64_t num_slots = 0;
  size_t slot_bytes = 0;
  size_t arena_bytes = 0;  // num_slots · slot_bytes: the most that step() holds of states
  // Beside the arena, in step() only and within swap_optimizer_times too: for casts and for what
  // the portable kernel needs. 0 where all dtypes are one and the kernel is fused.
  size_t scratch_bytes = 0;
  size_t kept_bytes = 0;   // by swap_optimizer_fraction: on the device between steps
  size_t state_bytes = 0;  // all states, wherever they are
  // Since construction:
  int64_t num_copies_in = 0;
  int64_t num_copies_out = 0;
  int64_t num_launches = 0;   // of the update kernel
  int64_t num_shortages = 0;  // steps that had to do with fewer slots: no room on the device
};

// Torch's fused kernels on one device, with the bits of torch.optim.Adam and AdamW (fused=True), or
// _foreach_ operators with those of foreach=True: see AdamOptions::kernel, and state_dtype and
// master_weights for states of another dtype than the parameters.
//
// With StatePlacement::kSwap the host states are the truth. No state is on the device outside
// step(), apart from what swap_optimizer_fraction keeps there, what prefetch() loads, and the last
// chunks: their copies out run on under the
// next forward, and their slots are given back by SwapContext::settle_done() or settle_all(), which
// zero_grad() and every swap of the context's other users call. The host never waits for the device
// in step() and prefetch().
//
// Not thread-safe. Work is enqueued on the stream that is current when a call is made.
class SWAPLINE_API Adam {
 public:
  // States are reserved for parameters that require a gradient; the others get theirs when they
  // first have one. `context`: of the parameters' device; may be null with StatePlacement::kDevice.
  // Throws: c10::Error for parameters or options that are not allowed, HostMemoryError.
  Adam(std::shared_ptr<SwapContext> context,
       std::vector<AdamGroup> groups,
       AdamOptions options = {});
  // Waits for copies in flight.
  ~Adam();
  Adam(const Adam&) = delete;
  Adam& operator=(const Adam&) = delete;

  // Updates every parameter that has a gradient, and only those.
  // Throws c10::Error before anything is touched for gradients that cannot be used. A failure
  // before the first update changes nothing: the step may be repeated. A later one leaves the
  // optimizer failed; its message says what was updated, and every later step() and prefetch()
  // repeats it. Either way no copy is in flight and no state on the device afterwards.
  void step();
  void zero_grad(bool set_to_none = true);

  // Begins to load the first chunks, behind what is enqueued on the compute stream: call it
  // before the last part of backward or before clipping. Settings and gradients are read in step().
  // A change of host states between prefetch() and step() needs drain() before it.
  // Does nothing when done already, or while the device has no room.
  void prefetch();
  // Blocks the calling thread until the host states are whole; drops what was prefetched or kept on
  // the device, which the next step() loads again.
  void drain();

  size_t num_groups() const;
  AdamSettings& settings(size_t group);
  // Without duplicates, in the order given.
  std::vector<at::Tensor> params(size_t group) const;

  // The states of a parameter under torch.optim's names: exp_avg, exp_avg_sq, max_exp_avg_sq
  // (amsgrad), step (fp32 scalar on the host) and, with master_weights, master_param; all of the
  // parameter's sizes and strides, empty before its first update. With kSwap they are host tensors;
  // drains first. A change made to them before the next step() counts. After a step() they are
  // whole again only after drain() or state().
  std::map<std::string, at::Tensor> state(const at::Tensor& param);

  AdamStats stats() const;
  // State bytes on the device now.
  size_t device_state_bytes() const;
  // Times of the steps since the last call, oldest first; with SwapContextOptions::timing and
  // kSwap. Blocks the calling thread until they are done on the device.
  std::vector<OptimizerStepTimes> take_step_times();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace swapline
