// The driver's functions that torch asks the runtime for by name: virtual memory, for expandable
// segments.
#include "harness/fake_cuda/cudart.h"

#include <map>
#include <string>

#include <cuda.h>

using swapline::harness::current_device;
using swapline::harness::Locked;
using swapline::harness::Place;

namespace {

constexpr size_t kGranularity = size_t{2} << 20;

void* pointer_of(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// What is to be known of memory without an address, in its handle: bytes and device.
constexpr int kDeviceBits = 4;

CUresult granularity(size_t* bytes,
                     const CUmemAllocationProp* /*properties*/,
                     CUmemAllocationGranularity_flags /*flags*/) {
  *bytes = kGranularity;
  return CUDA_SUCCESS;
}
CUresult reserve(CUdeviceptr* address,
                 size_t bytes,
                 size_t /*alignment*/,
                 CUdeviceptr /*wish*/,
                 unsigned long long /*flags*/) {
  const Locked machine;
  *address = reinterpret_cast<CUdeviceptr>(machine->memory.reserve(bytes));
  return *address == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult unreserve(CUdeviceptr address, size_t bytes) {
  const Locked machine;
  machine->memory.unreserve(pointer_of(address), bytes);
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle* handle,
                size_t bytes,
                const CUmemAllocationProp* properties,
                unsigned long long /*flags*/) {
  const Locked machine;
  const int device = properties->location.id;
  const std::string text = std::to_string(bytes) + " B of device memory";
  if (machine->is_faulty("device-allocation") ||
      !machine->memory.take_physical(bytes, Place::kDevice, device)) {
    machine->log.say("REFUSED", text);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  machine->log.say("malloc", text);
  *handle = bytes << kDeviceBits | static_cast<unsigned>(device);
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  const Locked machine;
  machine->memory.give_physical_back(
      handle >> kDeviceBits, Place::kDevice, static_cast<int>(handle & ((1U << kDeviceBits) - 1)));
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr address,
             size_t bytes,
             size_t /*offset*/,
             CUmemGenericAllocationHandle handle,
             unsigned long long /*flags*/) {
  const Locked machine;
  machine->memory.map(pointer_of(address),
                      bytes,
                      Place::kDevice,
                      static_cast<int>(handle & ((1U << kDeviceBits) - 1)));
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr /*address*/,
                    size_t /*bytes*/,
                    const CUmemAccessDesc* /*access*/,
                    size_t /*count*/) {
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr address, size_t bytes) {
  const Locked machine;
  machine->block("unmapping device memory");
  machine->memory.unmap(pointer_of(address), bytes);
  return CUDA_SUCCESS;
}
CUresult get_device(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult attribute(int* value, CUdevice_attribute /*attribute*/, CUdevice /*device*/) {
  *value = 0;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult /*error*/, const char** text) {
  *text = "an error of the fake CUDA driver";
  return CUDA_SUCCESS;
}
CUresult not_here() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol,
                                                        void** function,
                                                        unsigned /*version*/,
                                                        unsigned long long /*flags*/,
                                                        cudaDriverEntryPointQueryResult* result) {
  static const std::map<std::string, void*> kFunctions = {
      {"cuGetErrorString", reinterpret_cast<void*>(&error_string)},
      {"cuDeviceGet", reinterpret_cast<void*>(&get_device)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&attribute)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&granularity)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&unreserve)},
      {"cuMemCreate", reinterpret_cast<void*>(&create)},
      {"cuMemRelease", reinterpret_cast<void*>(&release)},
      {"cuMemMap", reinterpret_cast<void*>(&map)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&set_access)},
      {"cuMemUnmap", reinterpret_cast<void*>(&unmap)},
  };
  const auto found = kFunctions.find(symbol);
  *function = found == kFunctions.end() ? reinterpret_cast<void*>(&not_here) : found->second;
  if (result != nullptr) {
    *result = cudaDriverEntryPointSuccess;
  }
  return cudaSuccess;
}
