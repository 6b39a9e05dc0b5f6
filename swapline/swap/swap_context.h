// The owner of what swapping needs on one device: copy streams, pinned host memory, statistics.
// A model or an optimizer holds one; several may share it.
#pragma once

#include "swapline/copy/copy_streams.h"
#include "swapline/export.h"
#include "swapline/memory/host_pool.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace swapline {

// What a piece of device memory is used for; told to SwapContextOptions::on_device_memory.
enum class MemoryKind { kLayerInputs, kOptimizerStates };

struct SwapContextOptions {
  HostPoolOptions host;
  // Asked for every wait between streams; nullptr: a plain StreamOrder.
  std::shared_ptr<StreamOrder> order;
  // Called with each device storage that Swapline takes over or allocates, for whoever keeps a
  // memory account. May be empty.
  std::function<void(const c10::Storage&, MemoryKind)> on_device_memory;
  // Measure copies and waits with timed events (two more events each).
  bool timing = false;
};

class SWAPLINE_API SwapContext {
 public:
  // Throws c10::Error when `device` has no second memory (cpu, meta).
  explicit SwapContext(c10::Device device, SwapContextOptions options = {});
  ~SwapContext();
  SwapContext(const SwapContext&) = delete;
  SwapContext& operator=(const SwapContext&) = delete;

  c10::Device device() const { return copies_.device(); }
  CopyStreams& copies() { return copies_; }
  HostPool& host() { return host_; }
  StreamOrder& order() { return copies_.order(); }
  const SwapContextOptions& options() const { return options_; }

  void note_device_memory(const c10::Storage& storage, MemoryKind kind) const {
    if (options_.on_device_memory) {
      options_.on_device_memory(storage, kind);
    }
  }

  // Makes the compute stream wait for `event`; timed under `why` when options().timing.
  void wait_on_compute(c10::Event& event, Wait why);
  // Time compute stood still in those waits since the last reset, in ms; 0 without timing. Blocks
  // the host until they are over.
  double exposed_ms(Wait why);
  void reset_exposed();

  // Host memory could not be had and something stays on the device: counted, and said once.
  void note_host_failure(const std::string& label, const std::string& why);
  int64_t num_host_failures() const;

  // Device memory whose last copy out is still in flight and that nobody needs any more: held here
  // until `done`, then freed by the next settle. `pool`: the stream that was current when it was
  // allocated, where that is known.
  void release_later(c10::Storage storage,
                     SharedEvent done,
                     Wait why,
                     std::optional<c10::Stream> pool = std::nullopt);
  // Frees what is done. Never waits. Called by every swap operation.
  void settle_done();
  // Orders the compute stream after every pending copy and frees all: bounds what a host running
  // ahead can hold. Called at the turn from forward to backward and before an optimizer step.
  void settle_all();
  size_t pending_release_bytes() const;

 private:
  SwapContextOptions options_;
  HostPool host_;
  CopyStreams copies_;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace swapline
