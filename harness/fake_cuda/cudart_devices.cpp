// Devices and errors of the fake CUDA runtime: some Hopper-like ones.
#include "harness/fake_cuda/cudart.h"
#include "harness/machine/kernels_library.h"

#include <cstdio>
#include <cstring>
#include <utility>

namespace swapline::harness {
namespace {

thread_local int thread_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

constexpr int kVersion = 13000;

}  // namespace

int current_device() {
  return thread_device;
}

cudaError_t failed(cudaError_t error) {
  last_error = error;
  return error;
}

}  // namespace swapline::harness

using swapline::harness::current_device;
using swapline::harness::failed;
using swapline::harness::last_error;
using swapline::harness::Machine;
using swapline::harness::thread_device;

extern "C" {

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorNotSupported:
      return "operation not supported (fake CUDA)";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered (fake CUDA)";
    default:
      return "an error of the fake CUDA runtime";
  }
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
cudaError_t cudaGetLastError() {
  return Machine::get().is_broken ? cudaErrorIllegalAddress
                                  : std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return Machine::get().is_broken ? cudaErrorIllegalAddress : last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  swapline::harness::load_kernels();
  *count = Machine::get().num_devices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= Machine::get().num_devices) {
    return failed(cudaErrorInvalidDevice);
  }
  thread_device = device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = swapline::harness::kVersion;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = swapline::harness::kVersion;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  *can = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int /*peer*/, unsigned /*flags*/) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int /*device*/) {
  std::memset(p, 0, sizeof *p);
  std::snprintf(p->name, sizeof p->name, "Fake CUDA device");
  p->major = 9;
  p->minor = 0;
  p->totalGlobalMem = Machine::get().memory.device_capacity;
  p->multiProcessorCount = 132;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 5120;
  p->totalConstMem = 65536;
  p->textureAlignment = 512;
  p->unifiedAddressing = 1;
  p->canMapHostMemory = 1;
  p->asyncEngineCount = 3;
  p->concurrentKernels = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  cudaGetDeviceProperties(&properties, device);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = properties.maxThreadsPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = properties.warpSize;
      break;
    case cudaDevAttrUnifiedAddressing:
      *value = 1;
      break;
    case cudaDevAttrClockRate:
      *value = 1700000;  // kHz
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 2600000;  // kHz
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() {
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  return cudaSuccess;
}

}  // extern "C"
