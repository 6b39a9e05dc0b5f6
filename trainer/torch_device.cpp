// torch's own devices: the CPU, and one accelerator of this torch's.
#include "swapline/device/backend.h"
#include "trainer/device.h"

#include <stdexcept>
#include <utility>

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::trainer {
namespace {

class TorchDevice : public Device {
 public:
  TorchDevice(std::string type, c10::Device device, std::unique_ptr<Backend> backend)
      : Device(device), type_(std::move(type)), backend_(std::move(backend)) {
    if (!device.is_cpu()) {
      allocator_ = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    }
  }

  std::string type() const override { return type_; }
  std::string preset() const override { return ""; }

  MemoryReport memory() const override {
    MemoryReport report;
    if (allocator_ != nullptr) {
      const auto index = torch_device().index();
      const auto stats = allocator_->getDeviceStats(index);
      report.capacity_bytes = allocator_->getMemoryInfo(index).second;
      report.peak_allocated_bytes = static_cast<size_t>(stats.allocated_bytes[0].peak);
      report.peak_reserved_bytes = static_cast<size_t>(stats.reserved_bytes[0].peak);
    }
    return report;
  }

  void reset_peak_memory() override {
    if (allocator_ != nullptr) {
      allocator_->resetPeakStats(torch_device().index());
    }
  }

 private:
  std::string type_;
  std::unique_ptr<Backend> backend_;
  c10::DeviceAllocator* allocator_ = nullptr;
};

std::unique_ptr<Backend> load(const std::string& type) {
  try {
    return std::make_unique<Backend>(type);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error("--device.type: found " + type + ", and " + error.what() +
                             "; or use --device.type sim or cpu");
  }
}

}  // namespace

Devices make_torch_device(const std::string& type) {
  std::unique_ptr<Backend> backend = load(type);
  const c10::Device device(type == "cpu" ? type : type + ":0");
  if (!device.is_cpu()) {
    if (c10::impl::VirtualGuardImpl(device.type()).deviceCount() == 0) {
      throw std::runtime_error("--device.type: found " + type +
                               ", and no such device on this machine; or use --device.type sim or "
                               "cpu");
    }
    at::globalContext().lazyInitDevice(device.type());  // statistics are asked for before all else
  }
  Devices devices;
  devices.push_back(std::make_unique<TorchDevice>(type, device, std::move(backend)));
  return devices;
}

}  // namespace swapline::trainer
