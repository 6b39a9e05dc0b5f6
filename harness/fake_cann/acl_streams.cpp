// Streams and events of the fake Ascend runtime.
#include "harness/fake_cann/acl.h"

#include <set>

namespace swapline::harness {

Stream& stream_of_vendor(void* handle) {
  return *static_cast<Stream*>(handle);
}

}  // namespace swapline::harness

using swapline::harness::device_or_first;
using swapline::harness::event_of;
using swapline::harness::Locked;
using swapline::harness::stream_of_vendor;

// torch_npu makes each device's default stream first.
ACL_FUNCTION aclError aclrtCreateStreamWithConfig(aclrtStream* out,
                                                  uint32_t priority,
                                                  uint32_t /*flags*/) {
  static auto* has_default = new std::set<int>();
  ON_MACHINE
  const int device = device_or_first();
  *out = has_default->insert(device).second
             ? &machine->default_stream(device)
             : &machine->make_stream(device, static_cast<int>(priority));
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtCreateStream(aclrtStream* out) {
  return aclrtCreateStreamWithConfig(out, 0, 0);
}
ACL_FUNCTION aclError aclrtDestroyStream(aclrtStream stream) {
  ON_MACHINE
  machine->finish(stream_of_vendor(stream));
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtDestroyStreamForce(aclrtStream stream) {
  return aclrtDestroyStream(stream);
}
ACL_FUNCTION aclError aclrtSynchronizeStream(aclrtStream stream) {
  ON_MACHINE
  machine->synchronize(stream_of_vendor(stream));
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t /*ms*/) {
  return aclrtSynchronizeStream(stream);
}
ACL_FUNCTION aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  ON_MACHINE
  *status = machine->is_done(stream_of_vendor(stream)) ? ACL_STREAM_STATUS_COMPLETE
                                                       : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSynchronizeDevice() {
  ON_MACHINE
  machine->synchronize_device(device_or_first());
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSynchronizeDeviceWithTimeout(int32_t /*ms*/) {
  return aclrtSynchronizeDevice();
}
ACL_FUNCTION aclError aclrtSetStreamFailureMode(aclrtStream /*stream*/, uint64_t /*mode*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  const Locked machine;
  *id = stream_of_vendor(stream).number;
  return ACL_SUCCESS;
}

ACL_FUNCTION aclError aclrtCreateEventWithFlag(aclrtEvent* out, uint32_t flags) {
  ON_MACHINE
  *out = machine->make_event(device_or_first(), flags);
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtCreateEventExWithFlag(aclrtEvent* out, uint32_t flags) {
  return aclrtCreateEventWithFlag(out, flags);
}
ACL_FUNCTION aclError aclrtDestroyEvent(aclrtEvent event) {
  const Locked machine;
  delete &event_of(event);
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  ON_MACHINE
  machine->record(stream_of_vendor(stream), event_of(event));
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  ON_MACHINE
  machine->wait(stream_of_vendor(stream), event_of(event));
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtResetEvent(aclrtEvent /*event*/, aclrtStream /*stream*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSynchronizeEvent(aclrtEvent event) {
  ON_MACHINE
  machine->synchronize(event_of(event));
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  ON_MACHINE
  *status = machine->is_done(event_of(event)) ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                              : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  ON_MACHINE
  *status = machine->is_done(event_of(event)) ? ACL_EVENT_WAIT_STATUS_COMPLETE
                                              : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtEventElapsedTime(float* ms, aclrtEvent begin, aclrtEvent end) {
  ON_MACHINE
  if (event_of(begin).record == nullptr || event_of(end).record == nullptr) {
    return ACL_ERROR_INVALID_PARAM;
  }
  *ms = static_cast<float>(event_of(end).record->ms - event_of(begin).record->ms);
  return ACL_SUCCESS;
}
