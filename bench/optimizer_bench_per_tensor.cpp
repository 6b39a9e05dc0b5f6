#include "bench/optimizer_bench_per_tensor.h"

#include "sim/torch/sim.h"
#include "swapline/copy/timed_span.h"
#include "swapline/swap/swap_context.h"

#include <cstring>
#include <memory>
#include <optional>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

namespace swapline::bench {
namespace {

class PerTensorAdamW {
 public:
  PerTensorAdamW(std::shared_ptr<SwapContext> context, const AdamGroup& group, int64_t times)
      : context_(std::move(context)), settings_(group.settings) {
    for (const auto& param : group.params) {
      Entry& entry = entries_.emplace_back();
      entry.param = param;
      for (PinnedBuffer& host : entry.host) {
        host = context_->host().allocate(param.nbytes());
        host.wait_for_uses();
        if (!sim::simulator().options().dry_run) {
          std::memset(host.data(), 0, param.nbytes());
        }
      }
      slice_numel_ += param.numel();
    }
    slice_numel_ /= times;
    step_ = at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(context_->device()));
  }

  // `span`: of the whole step, when it is to be timed.
  void step(TimedSpans* span) {
    const c10::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    step_.add_(1);
    size_t num_loaded = 0;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (i == num_loaded) {
        num_loaded = load_slice(i, i == 0 ? span : nullptr);
      }
      update(entries_[i]);
      store(entries_[i]);
    }
    if (span != nullptr) {
      span->end(context_->copies().d2h_stream());
    }
  }

  std::vector<at::Tensor> on_cpu() const {
    context_->copies().d2h_stream().synchronize();
    std::vector<at::Tensor> tensors;
    for (const Entry& entry : entries_) {
      tensors.push_back(entry.param.detach().cpu());
      for (const PinnedBuffer& host : entry.host) {
        tensors.push_back(at::from_blob(host.data(), entry.param.sizes()).clone());
      }
      tensors.push_back(step_.cpu());
    }
    return tensors;
  }

 private:
  struct Entry {
    at::Tensor param;
    PinnedBuffer host[2];
    at::Tensor states[2];  // on the device, while it is in a slice
    SharedEvent loaded;
  };

  size_t load_slice(size_t first, TimedSpans* span) {
    auto& copies = context_->copies();
    const SharedEvent stored = record_event(copies.d2h_stream());
    stored->block(copies.compute_stream());
    stored->block(copies.h2d_stream());
    const c10::StreamGuard on_h2d(copies.h2d_stream());
    if (span != nullptr) {
      span->begin(copies.h2d_stream());
    }
    int64_t numel = 0;
    size_t i = first;
    for (; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      if (numel > 0 && numel + entry.param.numel() > slice_numel_) {
        break;
      }
      numel += entry.param.numel();
      for (size_t s = 0; s < 2; ++s) {
        entry.states[s] = at::empty_like(entry.param);
        copies.copy_in(entry.states[s].storage(), entry.host[s], {0, 0, entry.param.nbytes()});
      }
      entry.loaded = record_event(copies.h2d_stream());
    }
    return i;
  }

  void update(Entry& entry) {
    entry.loaded->block(context_->copies().compute_stream());
    at::_fused_adamw_({entry.param},
                      {entry.param.grad()},
                      {entry.states[0]},
                      {entry.states[1]},
                      {},
                      {step_},
                      settings_.lr,
                      settings_.beta1,
                      settings_.beta2,
                      settings_.weight_decay,
                      settings_.eps,
                      settings_.amsgrad,
                      settings_.maximize);
  }

  void store(Entry& entry) {
    auto& copies = context_->copies();
    record_event(copies.compute_stream())->block(copies.d2h_stream());
    for (size_t s = 0; s < 2; ++s) {
      copies.copy_out(entry.states[s].storage(), entry.host[s], {0, 0, entry.param.nbytes()});
      entry.states[s].reset();
    }
  }

  std::shared_ptr<SwapContext> context_;
  AdamSettings settings_;
  std::vector<Entry> entries_;
  int64_t slice_numel_ = 0;
  at::Tensor step_;
};

}  // namespace

PerTensorResult run_per_tensor(const Sizes& sizes, int64_t times, bool dry_run) {
  const AdamGroup group = make_group(sizes, dry_run);
  const auto context = std::make_shared<SwapContext>(sim::device());
  PerTensorAdamW adam(context, group, times);
  const c10::Stream d2h = context->copies().d2h_stream();
  const auto end_ms = [&] {
    const auto stream = static_cast<sim::StreamId>(d2h.id());
    return static_cast<double>(sim::simulator().stream_time(0, stream)) * 1e-6;
  };
  const size_t before = sim::simulator().memory_stats(0).allocated_bytes;
  sim::simulator().reset_peak_memory(0);
  PerTensorResult result;
  for (int i = 0; i < kNumSynced; ++i) {
    TimedSpans span;
    adam.step(&span);
    d2h.synchronize();
    result.step_ms = span.total_ms();
  }
  const double start_ms = end_ms();
  for (int i = 0; i < kNumUnsynced; ++i) {
    adam.step(nullptr);
  }
  result.unsynced_ms = (end_ms() - start_ms) / kNumUnsynced;
  d2h.synchronize();
  result.held_mib =
      static_cast<double>(sim::simulator().memory_stats(0).peak_allocated_bytes - before) / kMiB;
  result.copies_each_way =
      static_cast<double>(context->copies().stats().num_copies_in) / (kNumSynced + kNumUnsynced);
  if (!dry_run) {
    result.tensors = adam.on_cpu();
  }
  result.num_races = sim::simulator().num_races();
  return result;
}

}  // namespace swapline::bench
