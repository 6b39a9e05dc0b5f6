// Memory and copies of the fake CUDA runtime.
#include "harness/fake_cuda/cudart.h"

#include <cstring>

using swapline::harness::Block;
using swapline::harness::current_device;
using swapline::harness::failed;
using swapline::harness::Place;
using swapline::harness::stream_of_vendor;

extern "C" {

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  ON_MACHINE
  *total = machine->memory.device_capacity;
  *free = *total - machine->memory.device_bytes(current_device());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  ON_MACHINE
  *pointer = machine->allocate_device(bytes, current_device());
  return *pointer == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  ON_MACHINE
  return pointer == nullptr || machine->free_device(pointer) ? cudaSuccess
                                                             : failed(cudaErrorInvalidValue);
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned /*flags*/) {
  ON_MACHINE
  *pointer = machine->allocate_pinned(bytes, current_device());
  return *pointer == nullptr ? failed(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  ON_MACHINE
  return machine->free_pinned(pointer) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
// Torch's pinned allocator registers pages only when it is told to; the fake has no way to pin
// others' memory.
cudaError_t cudaHostRegister(void* /*pointer*/, size_t /*bytes*/, unsigned /*flags*/) {
  return failed(cudaErrorNotSupported);
}
cudaError_t cudaHostUnregister(void* /*pointer*/) {
  return failed(cudaErrorNotSupported);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  ON_MACHINE
  std::memset(attributes, 0, sizeof *attributes);
  const Block* block = machine->memory.find(pointer);
  if (block == nullptr) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  const bool is_device = block->place == Place::kDevice;
  attributes->type = is_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = block->device;
  attributes->devicePointer = const_cast<void*>(pointer);
  attributes->hostPointer = is_device ? nullptr : const_cast<void*>(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/, cudaStream_t stream) {
  ON_MACHINE
  return machine->copy(stream_of_vendor(stream), to, from, bytes) ? cudaSuccess
                                                                  : failed(cudaErrorUnknown);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/) {
  ON_MACHINE
  return machine->copy_now(stream_of_vendor(nullptr), to, from, bytes) ? cudaSuccess
                                                                       : failed(cudaErrorUnknown);
}
cudaError_t cudaMemcpyPeerAsync(
    void* to, int /*device*/, const void* from, int /*peer*/, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  ON_MACHINE
  machine->fill(stream_of_vendor(stream), to, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

}  // extern "C"
