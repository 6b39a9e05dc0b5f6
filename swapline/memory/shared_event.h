// A recorded event that several owners may hold: the buffer it guards, the group that waits for it.
#pragma once

#include <memory>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline {

using SharedEvent = std::shared_ptr<c10::Event>;

// A new event recorded on `stream` behind everything enqueued there so far.
inline SharedEvent record_event(const c10::Stream& stream,
                                c10::EventFlag flag = c10::EventFlag::PYTORCH_DEFAULT) {
  auto event = std::make_shared<c10::Event>(stream.device_type(), flag);
  event->record(stream);
  return event;
}

// Whether everything before the event is done. A device that has failed cannot tell any more (its
// queries throw, for good on CUDA): false. Its next real call has the user's error.
inline bool is_done(const SharedEvent& event) noexcept {
  try {
    return event->query();
  } catch (...) {
    return false;
  }
}

// Whether the device still takes calls. One that has failed throws from each, or, as torch_npu
// does for events of calls that were never made, waits for ever.
inline bool takes_calls(c10::Device device) noexcept {
  try {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.queryStream(guard.getStream(device));
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace swapline
