// libnvidia-ml.so.1: torch's expandable segments ask whether the device shares memory by fabric (it
// does not), its out-of-memory messages which processes hold memory.
namespace {

constexpr int kNotSupported = 3;  // NVML_ERROR_NOT_SUPPORTED

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* /*id*/, void** device) {
  *device = nullptr;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType() {
  return kNotSupported;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2() {
  return kNotSupported;
}
int nvmlDeviceGetComputeRunningProcesses(void* /*device*/, unsigned* count, void* /*infos*/) {
  *count = 0;
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV() {
  return kNotSupported;
}

}  // extern "C"
