// What all optimizers have in common: steps, states in host memory or on the device, figures.
#pragma once

#include "swapline/export.h"
#include "swapline/optimizer/grad_scaling.h"
#include "swapline/optimizer/optimizer_options.h"
#include "swapline/optimizer/step_times.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

namespace detail {
class OptimizerEngine;
class UpdateRule;
}  // namespace detail

// Over all devices of an optimizer.
struct OptimizerStats {
  int64_t num_chunks = 0;
  int64_t num_slots = 0;  // on a device
  size_t slot_bytes = 0;  // the largest, where devices differ
  // num_slots · slot_bytes: the most that step() holds of states; 0 where nothing is swapped.
  size_t arena_bytes = 0;
  // Beside the arena, in step() only: what updates need for casts and temporaries.
  size_t scratch_bytes = 0;
  size_t kept_bytes = 0;    // by swap_optimizer_fraction: on the device between steps
  size_t mapped_bytes = 0;  // by virtual_optimizer_bytes: in host memory, never on the device
  size_t state_bytes = 0;   // all states, wherever they are
  // Since construction:
  int64_t num_copies_in = 0;
  int64_t num_copies_out = 0;
  int64_t num_launches = 0;   // of the update kernel
  int64_t num_shortages = 0;  // steps that had to do with fewer slots: no room on the device
};

// With StatePlacement::kSwap the host states are the truth. No state is on the device outside
// step(), apart from what swap_optimizer_fraction keeps there, what prefetch() loads, and the last
// chunks: their copies out run on under the next forward, and their slots are given back by
// SwapContext::settle_done() or settle_all(), which zero_grad() and every swap of the context's
// other users call. The host never waits for the device in step() and prefetch().
//
// Not thread-safe. Work is enqueued on the stream that is current on each device when a call is
// made.
class SWAPLINE_API Optimizer {
 public:
  using Closure = std::function<at::Tensor()>;
  using StepHook = std::function<void(Optimizer&)>;

  // Waits for copies in flight.
  virtual ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient, and only those.
  // Throws c10::Error before anything is touched for gradients that cannot be used. A failure
  // before the first update changes nothing: the step may be repeated. A later one leaves the
  // optimizer failed; its message says what was updated, and every later step() and prefetch()
  // repeats it. Either way no copy is in flight and no state on the device afterwards.
  void step(const GradScaling& scaling = {});
  // Calls `closure` once, with gradients enabled, then steps; returns what it gave, the loss.
  at::Tensor step(const Closure& closure, const GradScaling& scaling = {});
  void zero_grad(bool set_to_none = true);
  // Whether step() takes GradScaling: a kernel may leave its arguments out, so that is tried, once,
  // which blocks the calling thread.
  bool heeds_scaling() const;

  // Called once in each step(), before it (the closure included) or after it; in the order they
  // were added. An exception from one before keeps the step from being done. The number removes it.
  int64_t add_step_pre_hook(StepHook hook);
  int64_t add_step_post_hook(StepHook hook);
  void remove_hook(int64_t number);

  // Begins to load the first chunks, behind what is enqueued on the compute stream: call it
  // before the last part of backward or before clipping. Settings and gradients are read in step().
  // A change of host states between prefetch() and step() needs drain() before it.
  // Does nothing when done already, or while the device has no room.
  void prefetch();
  // Blocks the calling thread until the host states are whole; drops what was prefetched or kept on
  // the device, which the next step() loads again.
  void drain();

  virtual size_t num_groups() const = 0;
  // The learning rate of a group, for schedules.
  virtual double lr(size_t group) const = 0;
  virtual void set_lr(size_t group, double lr) = 0;
  // Without duplicates, device by device, in the order given.
  std::vector<at::Tensor> params(size_t group) const;

  // The states of a parameter under torch.optim's names, e.g. exp_avg, and step (fp32 scalar on the
  // host) where torch.optim has it; all others of the parameter's sizes and strides, none before
  // its first update. With kSwap they are host tensors, and so are those of parameters with mapped
  // states; drains first. A change made to them before the next step() counts. After a step() they
  // are whole again only after drain() or state().
  std::map<std::string, at::Tensor> state(const at::Tensor& param);
  // The same, and makes the states of a parameter that has none yet: zeros, for a checkpoint to be
  // read into. Throws HostMemoryError.
  std::map<std::string, at::Tensor> make_state(const at::Tensor& param);
  // Takes the states of a parameter back to what they were before its first update: zeros, and
  // none to be seen. Drains first.
  void clear_state(const at::Tensor& param);
  // The names that state() has for a parameter that was updated.
  std::vector<std::string> state_names(const at::Tensor& param) const;

  OptimizerStats stats() const;
  // State bytes on the devices now.
  size_t device_state_bytes() const;
  // Times of the steps since the last call, oldest first; with SwapContextOptions::timing and
  // kSwap, on one device. Blocks the calling thread until they are done on the device.
  std::vector<OptimizerStepTimes> take_step_times();

 protected:
  using Contexts = std::vector<std::shared_ptr<SwapContext>>;
  using MakeRule = std::function<std::unique_ptr<detail::UpdateRule>(c10::Device)>;

  // One engine for each device: of `contexts`, and with kDevice of parameters without one.
  Optimizer(const Contexts& contexts,
            std::span<const std::vector<at::Tensor>> groups,
            const OptimizerOptions& options,
            const MakeRule& make_rule);

  // Takes the parameters of further groups, numbered from `first`; all of them or, when it throws,
  // none.
  void add_params(size_t first, std::span<const std::vector<at::Tensor>> groups);

 private:
  struct Hook {
    int64_t number;
    bool is_before;
    StepHook call;
  };

  int64_t add_hook(bool is_before, StepHook hook);
  void run_hooks(bool before);
  void update(const GradScaling& scaling);
  detail::OptimizerEngine& engine_of(const at::Tensor& param) const;

  std::vector<std::unique_ptr<detail::OptimizerEngine>> engines_;
  std::list<Hook> hooks_;
  int64_t num_hooks_ = 0;
};

}  // namespace swapline
