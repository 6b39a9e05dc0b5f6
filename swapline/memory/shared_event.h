// A recorded event that several owners may hold: the buffer it guards, the group that waits for it.
#pragma once

#include <memory>

#include <c10/core/Event.h>

namespace swapline {

using SharedEvent = std::shared_ptr<c10::Event>;

// A new event recorded on `stream` behind everything enqueued there so far.
inline SharedEvent record_event(const c10::Stream& stream,
                                c10::EventFlag flag = c10::EventFlag::PYTORCH_DEFAULT) {
  auto event = std::make_shared<c10::Event>(stream.device_type(), flag);
  event->record(stream);
  return event;
}

}  // namespace swapline
