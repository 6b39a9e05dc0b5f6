// What all devices share: time by events, and the choice between them.
#include "trainer/device.h"

#include <chrono>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::trainer {

TimeMark Device::mark() const {
  if (!torch_device_.is_cpu()) {
    return mark(current_stream());
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return {nullptr, std::chrono::duration<double, std::milli>(now).count()};
}

TimeMark Device::mark(const c10::Stream& stream) const {
  // Only events made for it can be timed.
  auto event = std::make_shared<c10::Event>(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  event->record(stream);
  return {std::move(event), 0};
}

double Device::elapsed_ms(const TimeMark& begin, const TimeMark& end) const {
  if (torch_device_.is_cpu()) {
    return end.clock_ms - begin.clock_ms;
  }
  begin.event->synchronize();
  end.event->synchronize();
  return begin.event->elapsedTime(*end.event);
}

c10::Stream Device::new_stream(const std::string& name) {
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(torch_device_.type()).getNewStream(torch_device_);
  name_stream(stream, name);
  return stream;
}

c10::Stream Device::current_stream() const {
  return c10::impl::VirtualGuardImpl(torch_device_.type()).getStream(torch_device_);
}

Devices make_devices(const DeviceConfig& config, int64_t count, bool enable_trace) {
  return config.type == "sim" ? make_sim_devices(config, count, enable_trace)
                              : make_torch_device(config.type);
}

}  // namespace swapline::trainer
