// Streams and events of the fake CUDA runtime.
#include "harness/fake_cuda/cudart.h"

#include <vector>

namespace swapline::harness {

// The null stream is the default stream of the calling thread's device.
Stream& stream_of_vendor(void* handle) {
  auto* stream = static_cast<cudaStream_t>(handle);
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    return Machine::get().default_stream(current_device());
  }
  return *static_cast<Stream*>(handle);
}

}  // namespace swapline::harness

using swapline::harness::current_device;
using swapline::harness::Event;
using swapline::harness::event_of;
using swapline::harness::failed;
using swapline::harness::stream_of_vendor;

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/, int priority) {
  ON_MACHINE
  *stream = reinterpret_cast<cudaStream_t>(&machine->make_stream(current_device(), priority));
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ON_MACHINE
  machine->finish(stream_of_vendor(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  ON_MACHINE
  *priority = stream_of_vendor(stream).priority;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ON_MACHINE
  return machine->is_done(stream_of_vendor(stream)) ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ON_MACHINE
  machine->synchronize(stream_of_vendor(stream));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ON_MACHINE
  machine->synchronize_device(current_device());
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  ON_MACHINE
  machine->wait(stream_of_vendor(stream), event_of(event));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t /*stream*/,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* id,
                                     cudaGraph_t* /*graph*/,
                                     const cudaGraphNode_t** /*dependencies*/,
                                     const cudaGraphEdgeData** /*edges*/,
                                     size_t* /*num_dependencies*/) {
  *status = cudaStreamCaptureStatusNone;
  if (id != nullptr) {
    *id = 0;
  }
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* /*mode*/) {
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  ON_MACHINE
  machine->call_host(stream_of_vendor(stream), [=] { function(data); });
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                  cudaStreamCallback_t callback,
                                  void* data,
                                  unsigned /*flags*/) {
  ON_MACHINE
  machine->call_host(stream_of_vendor(stream), [=] { callback(stream, cudaSuccess, data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ON_MACHINE
  *event = reinterpret_cast<cudaEvent_t>(machine->make_event(current_device(), flags));
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const swapline::harness::Locked machine;
  delete &event_of(event);
  return machine->is_broken ? failed(cudaErrorIllegalAddress) : cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ON_MACHINE
  machine->record(stream_of_vendor(stream), event_of(event));
  return event_of(event).device == stream_of_vendor(stream).device
             ? cudaSuccess
             : failed(cudaErrorInvalidResourceHandle);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned /*flags*/) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ON_MACHINE
  return machine->is_done(event_of(event)) ? cudaSuccess : failed(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ON_MACHINE
  machine->synchronize(event_of(event));
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin_handle, cudaEvent_t end_handle) {
  ON_MACHINE
  const Event& begin = event_of(begin_handle);
  const Event& end = event_of(end_handle);
  if (begin.record == nullptr || end.record == nullptr ||
      ((begin.flags | end.flags) & cudaEventDisableTiming) != 0) {
    return failed(cudaErrorInvalidResourceHandle);
  }
  if (!begin.record->is_done || !end.record->is_done) {
    return failed(cudaErrorNotReady);
  }
  *ms = static_cast<float>(end.record->ms - begin.record->ms);
  return cudaSuccess;
}

}  // extern "C"
