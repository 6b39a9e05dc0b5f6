// Memory and copies of the fake Ascend runtime.
#include "harness/fake_cann/acl.h"

#include <cstring>
#include <map>
#include <string>

using swapline::harness::Block;
using swapline::harness::device_or_first;
using swapline::harness::Locked;
using swapline::harness::Machine;
using swapline::harness::Place;
using swapline::harness::stream_of_vendor;

namespace {

// Memory without an address.
struct Physical {
  size_t bytes;
  Place place;
  int device;
};

std::map<void*, size_t>& reserved() {
  static auto* all = new std::map<void*, size_t>();
  return *all;
}

aclError allocate(void** out, size_t bytes) {
  ON_MACHINE
  *out = machine->allocate_device(bytes, device_or_first());
  return *out == nullptr ? ACL_ERROR_RT_MEMORY_ALLOCATION : ACL_SUCCESS;
}

}  // namespace

ACL_FUNCTION aclError aclrtMalloc(void** out, size_t bytes, aclrtMemMallocPolicy /*policy*/) {
  return allocate(out, bytes);
}
ACL_FUNCTION aclError aclrtMallocAlign32(void** out,
                                         size_t bytes,
                                         aclrtMemMallocPolicy /*policy*/) {
  return allocate(out, bytes);
}
ACL_FUNCTION aclError aclrtFree(void* data) {
  ON_MACHINE
  return machine->free_device(data) ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}
ACL_FUNCTION aclError aclrtMallocHost(void** out, size_t bytes) {
  ON_MACHINE
  *out = machine->allocate_pinned(bytes, device_or_first());
  return *out == nullptr ? ACL_ERROR_RT_MEMORY_ALLOCATION : ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtFreeHost(void* data) {
  ON_MACHINE
  return machine->free_pinned(data) ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}
ACL_FUNCTION aclError aclrtGetMemInfo(aclrtMemAttr /*what*/, size_t* free, size_t* total) {
  ON_MACHINE
  *total = machine->memory.device_capacity;
  *free = *total - machine->memory.device_bytes(device_or_first());
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtPointerGetAttributes(const void* data, aclrtPtrAttributes* attributes) {
  ON_MACHINE
  std::memset(attributes, 0, sizeof *attributes);
  const Block* block = machine->memory.find(data);
  attributes->location.type = block == nullptr                 ? ACL_MEM_LOCATION_TYPE_UNREGISTERED
                              : block->place == Place::kDevice ? ACL_MEM_LOCATION_TYPE_DEVICE
                                                               : ACL_MEM_LOCATION_TYPE_HOST;
  attributes->location.id = block == nullptr ? 0 : static_cast<uint32_t>(block->device);
  return ACL_SUCCESS;
}

// Expandable segments: address space first, memory where it is mapped.
ACL_FUNCTION aclError aclrtReserveMemAddress(
    void** out, size_t bytes, size_t /*alignment*/, void* /*wish*/, uint64_t /*flags*/) {
  const Locked machine;
  *out = machine->memory.reserve(bytes);
  reserved()[*out] = bytes;
  return *out == nullptr ? ACL_ERROR_RT_MEMORY_ALLOCATION : ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtReleaseMemAddress(void* data) {
  const Locked machine;
  machine->memory.unreserve(data, reserved()[data]);
  reserved().erase(data);
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle,
                                          size_t bytes,
                                          const aclrtPhysicalMemProp* properties,
                                          uint64_t /*flags*/) {
  ON_MACHINE
  const bool is_host = properties->location.type == ACL_MEM_LOCATION_TYPE_HOST;
  const Physical physical{bytes, is_host ? Place::kPinned : Place::kDevice, device_or_first()};
  const std::string text =
      std::to_string(bytes) + " B of " + (is_host ? "pinned" : "device") + " memory";
  if (machine->is_faulty(is_host ? "pinned-allocation" : "device-allocation") ||
      !machine->memory.take_physical(bytes, physical.place, physical.device)) {
    machine->log.say("REFUSED", text);
    return ACL_ERROR_RT_MEMORY_ALLOCATION;
  }
  machine->log.say(is_host ? "pin" : "malloc", text);
  *handle = reinterpret_cast<aclrtDrvMemHandle>(new Physical(physical));
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  const Locked machine;
  auto* physical = reinterpret_cast<Physical*>(handle);
  machine->memory.give_physical_back(physical->bytes, physical->place, physical->device);
  delete physical;
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtMapMem(
    void* data, size_t bytes, size_t /*offset*/, aclrtDrvMemHandle handle, uint64_t /*flags*/) {
  ON_MACHINE
  const auto* physical = reinterpret_cast<const Physical*>(handle);
  machine->memory.map(data, bytes, physical->place, physical->device);
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtUnmapMem(void* data) {
  ON_MACHINE
  machine->block("unmapping memory");
  machine->memory.unmap(data, machine->memory.mapped_bytes_at(data));
  return ACL_SUCCESS;
}

ACL_FUNCTION aclError
aclrtMemcpy(void* to, size_t /*room*/, const void* from, size_t bytes, aclrtMemcpyKind /*kind*/) {
  ON_MACHINE
  return machine->copy_unordered(to, from, bytes) ? ACL_SUCCESS : ACL_ERROR_RT_INTERNAL_ERROR;
}
ACL_FUNCTION aclError aclrtMemcpyAsync(void* to,
                                       size_t /*room*/,
                                       const void* from,
                                       size_t bytes,
                                       aclrtMemcpyKind /*kind*/,
                                       aclrtStream stream) {
  ON_MACHINE
  return machine->copy(stream_of_vendor(stream), to, from, bytes) ? ACL_SUCCESS
                                                                  : ACL_ERROR_RT_INTERNAL_ERROR;
}
ACL_FUNCTION aclError aclrtMemset(void* data, size_t /*room*/, int32_t value, size_t bytes) {
  ON_MACHINE
  machine->block("a synchronous fill");
  std::memset(data, value, bytes);
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError
aclrtMemsetAsync(void* data, size_t /*room*/, int32_t value, size_t bytes, aclrtStream stream) {
  ON_MACHINE
  machine->fill(stream_of_vendor(stream), data, value, bytes);
  return ACL_SUCCESS;
}
