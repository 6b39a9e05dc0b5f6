// The pending list (device memory kept alive until the copies that touch it are done), exposed
// time, and what could not be swapped.
#include "swapline/swap/swap_context.h"

#include "swapline/swap/device_memory.h"

#include <array>
#include <deque>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

namespace swapline {

struct SwapContext::Impl {
  struct Pending {
    detail::PooledStorage memory;
    SharedEvent done;
    Wait why;
  };
  mutable std::mutex mutex;
  std::deque<Pending> pending;
  std::array<TimedSpans, kNumWaits> exposed;
  int64_t num_host_failures = 0;
};

SwapContext::SwapContext(c10::Device device, SwapContextOptions options)
    : options_((CopyStreams::check_device(device), std::move(options))),
      host_(device, options_.host),
      copies_(device, options_.order),
      impl_(std::make_unique<Impl>()) {}

SwapContext::~SwapContext() {
  if (!takes_calls(device())) {
    return;
  }
  try {
    for (const Impl::Pending& item : impl_->pending) {
      item.done->synchronize();
    }
  } catch (...) {  // A device that failed: its copies are over.
  }
}

void SwapContext::wait_on_compute(c10::Event& event, Wait why) {
  const c10::Stream compute = copies_.compute_stream();
  if (!options_.timing) {
    order().make_wait(compute, event, why);
    return;
  }
  const std::lock_guard lock(impl_->mutex);
  TimedSpans& spans = impl_->exposed.at(static_cast<size_t>(why));
  spans.begin(compute);
  order().make_wait(compute, event, why);
  spans.end(compute);
}

double SwapContext::exposed_ms(Wait why) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->exposed.at(static_cast<size_t>(why)).total_ms();
}

void SwapContext::reset_exposed() {
  const std::lock_guard lock(impl_->mutex);
  for (TimedSpans& spans : impl_->exposed) {
    spans.reset();
  }
}

void SwapContext::note_host_failure(const std::string& label, const std::string& why) {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->num_host_failures++ == 0) {
    TORCH_WARN(
        "'", label, "' stays on the device, and so does what follows it while this lasts: ", why);
  }
}

int64_t SwapContext::num_host_failures() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_host_failures;
}

void SwapContext::release_later(c10::Storage storage,
                                SharedEvent done,
                                Wait why,
                                std::optional<c10::Stream> pool) {
  detail::PooledStorage memory{std::move(storage), pool};
  detail::note_last_use(memory, copies_.compute_stream());
  const std::lock_guard lock(impl_->mutex);
  impl_->pending.push_back({std::move(memory), std::move(done), why});
}

void SwapContext::settle_done() {
  const std::lock_guard lock(impl_->mutex);
  std::erase_if(impl_->pending, [](const auto& item) { return is_done(item.done); });
}

void SwapContext::settle_all() {
  const std::lock_guard lock(impl_->mutex);
  const c10::Stream compute = copies_.compute_stream();
  while (!impl_->pending.empty()) {
    const Impl::Pending& item = impl_->pending.front();
    order().make_wait(compute, *item.done, item.why);
    detail::note_last_use(item.memory, compute);
    impl_->pending.pop_front();
  }
}

size_t SwapContext::pending_release_bytes() const {
  const std::lock_guard lock(impl_->mutex);
  size_t bytes = 0;
  for (const Impl::Pending& item : impl_->pending) {
    bytes += item.memory.storage.nbytes();
  }
  return bytes;
}

}  // namespace swapline
