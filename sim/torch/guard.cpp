// Devices, streams and events of the simulated machine, as c10 sees them.
#include "sim/torch/idle.h"
#include "sim/torch/pending_work.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"

#include <memory>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

namespace swapline::sim {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr double kNanosPerMilli = 1e6;

using Event = std::shared_ptr<EventState>;

const EventState& state(void* event) {
  TORCH_CHECK(event != nullptr, "the event was never recorded");
  return **static_cast<Event*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::DeviceIndex deviceCount() const noexcept override { return kNumDevices; }

  c10::Device getDevice() const override { return device(current_device()); }
  void setDevice(c10::Device d) const override { set_current_device(d.index()); }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0 && d.index() < kNumDevices) {
      set_current_device(d.index());
    }
  }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device old = getDevice();
    if (d.index() >= 0) {
      set_current_device(d.index());
    }
    return old;
  }

#if __has_include(<c10/core/DeviceCapability.h>)  // since torch 2.10
  c10::DeviceCapability getDeviceCapability(c10::Device /*d*/) const override {
    return {};  // every dtype, as on the CPU
  }
#endif

  c10::Stream getStream(c10::Device d) const override {
    const int index = index_of(d);
    return to_stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return to_stream(index_of(d), 0);
  }
  c10::Stream getNewStream(c10::Device d, int /*priority*/) const override {
    const int index = index_of(d);
    return to_stream(index, simulator().new_stream(index));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool /*high*/) const override {
    return getNewStream(d, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream old = getStream(stream.device());
    set_current_stream(stream.device_index(), static_cast<StreamId>(stream.id()));
    return old;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return simulator().is_stream_done(stream.device_index(), static_cast<StreamId>(stream.id()));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    simulator().synchronize_stream(stream.device_index(), static_cast<StreamId>(stream.id()));
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    const int waited = index < 0 ? current_device() : index;
    settle_pending_work(waited);
    simulator().synchronize_device(waited);
    wait_until_idle(waited);
  }

  void record(void** event,
              const c10::Stream& stream,
              const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    auto recorded = simulator().record(stream.device_index(), static_cast<StreamId>(stream.id()));
    if (*event == nullptr) {
      *event = new Event(std::move(recorded));
    } else {
      *static_cast<Event*>(*event) = std::move(recorded);
    }
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      simulator().wait(stream.device_index(), static_cast<StreamId>(stream.id()), state(event));
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || simulator().is_done(state(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      simulator().synchronize(state(event));
    }
  }
  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex /*device*/) const override {
    return static_cast<double>(Simulator::time_of(state(end)) - Simulator::time_of(state(begin))) /
           kNanosPerMilli;
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get_context() != nullptr) {
      simulator().record_stream(
          data.get_context(), stream.device_index(), static_cast<StreamId>(stream.id()));
    }
  }

 private:
  static int index_of(c10::Device d) {
    return d.index() < 0 ? current_device() : d.index();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace swapline::sim
