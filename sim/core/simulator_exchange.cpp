// Work of the simulated machine that ends when other machines say so.
#include "sim/core/simulator.h"
#include "sim/core/simulator_impl.h"

#include <algorithm>

namespace swapline::sim {

std::shared_ptr<EventState> Simulator::begin_exchange(int device,
                                                      StreamId stream,
                                                      std::string_view name,
                                                      std::span<const Access> accesses) {
  const std::lock_guard lock(impl_->mutex);
  Stream& runs = impl_->stream(device, stream);
  impl_->start(runs);
  impl_->check(runs, name, accesses);
  impl_->note_mapped(runs, name, accesses);
  impl_->host_spends(device, "launch", impl_->options.spec.host_op_time);
  const Nanos ready = std::max(runs.time, impl_->device(device).host);
  return std::make_shared<EventState>(EventState{device, ready, runs.clock});
}

void Simulator::end_exchange(EventState& event,
                             StreamId stream,
                             std::string_view name,
                             size_t bytes,
                             Nanos begin,
                             Nanos end) {
  const std::lock_guard lock(impl_->mutex);
  Device& owner = impl_->device(event.device);
  Stream& runs = impl_->stream(event.device, stream);
  event.time = end;
  runs.time = std::max(runs.time, end);
  ++owner.counters.num_exchanges;
  owner.counters.bytes_exchanged += static_cast<int64_t>(bytes);
  if (impl_->options.trace) {
    impl_->trace.span(event.device, Lane::kPeer, stream, name, begin, end);
  }
}

}  // namespace swapline::sim
