// libcuda.so.1, for libcaffe2_nvrtc.so, which torch opens to ask whether a device has a context.
#include <cuda.h>

extern "C" {

CUresult cuDevicePrimaryCtxGetState(CUdevice /*device*/, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult /*error*/, const char** text) {
  *text = "an error of the fake CUDA driver";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

}  // extern "C"
