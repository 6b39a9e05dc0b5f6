// torch's own devices: the CPU, and any accelerator this torch was built with.
#include "trainer/device.h"

#include <stdexcept>

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::trainer {
namespace {

class TorchDevice : public Device {
 public:
  TorchDevice(std::string type, c10::Device device) : Device(device), type_(std::move(type)) {
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
  c10::DeviceAllocator* allocator_ = nullptr;
};

c10::DeviceType device_type(const std::string& type) {
  return type == "cuda" ? c10::DeviceType::CUDA : c10::DeviceType::PrivateUse1;
}

int64_t num_devices(const std::string& type) {
  const c10::DeviceType wanted = device_type(type);
  // The simulated accelerator has the same device type as an NPU, under another name.
  const bool is_named_so = type == "cuda" || c10::get_privateuse1_backend() == type;
  return is_named_so && c10::impl::hasDeviceGuardImpl(wanted)
             ? c10::impl::VirtualGuardImpl(wanted).deviceCount()
             : 0;
}

}  // namespace

Devices make_torch_devices(const std::string& type, int64_t count) {
  Devices devices;
  if (type == "cpu") {
    devices.push_back(std::make_unique<TorchDevice>(type, c10::Device(c10::DeviceType::CPU)));
    return devices;
  }
  const int64_t there = num_devices(type);
  if (there == 0) {
    throw std::runtime_error("--device.type: found " + type +
                             ", which this torch does not have on this machine; there are sim and "
                             "cpu");
  }
  if (there < count) {
    throw std::runtime_error("--device.type: found " + type + " with " + std::to_string(there) +
                             " devices; --parallelism.pipeline-parallel-degree times "
                             "--parallelism.expert-parallel-degree asks for " +
                             std::to_string(count));
  }
  for (int64_t index = 0; index < count; ++index) {
    devices.push_back(std::make_unique<TorchDevice>(
        type, c10::Device(device_type(type), static_cast<c10::DeviceIndex>(index))));
  }
  return devices;
}

}  // namespace swapline::trainer
