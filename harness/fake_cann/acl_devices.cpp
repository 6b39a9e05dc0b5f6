// Devices, contexts, versions and settings of the fake Ascend runtime.
#include "harness/fake_cann/acl.h"
#include "harness/machine/kernels_library.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>

#include <acl/acl_op_compiler.h>

namespace swapline::harness {
namespace {

thread_local int thread_device = -1;

// A context is a device's, known by a number that no pointer has.
constexpr intptr_t kFirstContext = 0x1000;

std::set<int>& devices_in_use() {
  static auto* devices = new std::set<int>();
  return *devices;
}

}  // namespace

int current_device() {
  return thread_device;
}

}  // namespace swapline::harness

using swapline::harness::current_device;
using swapline::harness::devices_in_use;
using swapline::harness::kFirstContext;
using swapline::harness::Locked;
using swapline::harness::Machine;
using swapline::harness::thread_device;

ACL_FUNCTION aclError aclInit(const char* /*config*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclFinalize() {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSetDevice(int32_t device) {
  swapline::harness::load_kernels();
  const Locked machine;
  if (device < 0 || device >= machine->num_devices) {
    return ACL_ERROR_INVALID_PARAM;
  }
  thread_device = device;
  devices_in_use().insert(device);
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtResetDevice(int32_t /*device*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtGetDevice(int32_t* device) {
  if (current_device() < 0) {
    return ACL_ERROR_RT_CONTEXT_NULL;
  }
  *device = current_device();
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtGetDeviceCount(uint32_t* count) {
  *count = static_cast<uint32_t>(Machine::get().num_devices);
  return ACL_SUCCESS;
}
ACL_FUNCTION const char* aclrtGetSocName() {
  return "Ascend910B3";
}
ACL_FUNCTION aclError aclrtGetCurrentContext(aclrtContext* context) {
  if (current_device() < 0) {
    return ACL_ERROR_RT_CONTEXT_NULL;
  }
  *context = reinterpret_cast<aclrtContext>(kFirstContext + current_device());
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSetCurrentContext(aclrtContext context) {
  thread_device = static_cast<int>(reinterpret_cast<intptr_t>(context) - kFirstContext);
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t* flags, int32_t* active) {
  const Locked machine;
  if (flags != nullptr) {
    *flags = 0;
  }
  if (active != nullptr) {
    *active = devices_in_use().count(device) != 0 ? 1 : 0;
  }
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t /*device*/, int32_t /*peer*/) {
  *can = 1;
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtDeviceEnablePeerAccess(int32_t /*peer*/, uint32_t /*flags*/) {
  return ACL_SUCCESS;
}

ACL_FUNCTION const char* aclGetRecentErrMsg() {
  return Machine::get().is_broken ? "a fault of the fake device" : "";
}
ACL_FUNCTION void aclAppLog(aclLogLevel level,
                            const char* function,
                            const char* /*file*/,
                            uint32_t /*line*/,
                            const char* format,
                            ...) {
  if (level < ACL_ERROR) {
    return;
  }
  va_list arguments;
  va_start(arguments, format);
  std::fprintf(stderr, "[fake CANN] %s: ", function);
  std::vfprintf(stderr, format, arguments);
  std::fprintf(stderr, "\n");
  va_end(arguments);
}
ACL_FUNCTION aclError aclGetDeviceCapability(uint32_t /*device*/,
                                             aclDeviceInfo /*what*/,
                                             int64_t* value) {
  *value = 20;  // cores
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtGetDeviceInfo(uint32_t /*device*/,
                                         aclrtDevAttr /*what*/,
                                         int64_t* value) {
  *value = 20;
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtGetLastError(aclrtLastErrLevel /*level*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtPeekAtLastError(aclrtLastErrLevel /*level*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSetOpExecuteTimeOut(uint32_t /*seconds*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSetOpWaitTimeout(uint32_t /*seconds*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode /*mode*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclsysGetVersionStr(char* /*name*/, char* version) {
  std::strcpy(version, "9.0.0");
  return ACL_SUCCESS;
}
// torch_npu takes other ways with old versions: below driver 25.5 it cannot ask what a pointer is.
ACL_FUNCTION aclError aclsysGetCANNVersion(aclCANNPackageName name,
                                           aclCANNPackageVersion* version) {
  const char* cann = std::getenv("HARNESS_CANN_VERSION");
  const char* driver = std::getenv("HARNESS_DRIVER_VERSION");
  std::memset(version, 0, sizeof *version);
  std::snprintf(version->version,
                sizeof version->version,
                "%s",
                name == ACL_PKG_NAME_DRIVER ? (driver != nullptr ? driver : "25.5.0")
                                            : (cann != nullptr ? cann : "8.5.0"));
  return ACL_SUCCESS;
}

// The operator compiler: options are accepted.
ACL_FUNCTION aclError aclSetCompileopt(aclCompileOpt /*option*/, const char* /*value*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION size_t aclGetCompileoptSize(aclCompileOpt /*option*/) {
  return 256;
}
ACL_FUNCTION aclError aclGetCompileopt(aclCompileOpt /*option*/, char* value, size_t length) {
  if (length > 0) {
    value[0] = '\0';
  }
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclopSetCompileFlag(aclOpCompileFlag /*flag*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtGetSysParamOpt(aclSysParamOpt /*option*/, int64_t* value) {
  *value = 0;
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtSetSysParamOpt(aclSysParamOpt /*option*/, int64_t /*value*/) {
  return ACL_SUCCESS;
}
ACL_FUNCTION aclError aclrtCtxSetSysParamOpt(aclSysParamOpt /*option*/, int64_t /*value*/) {
  return ACL_SUCCESS;
}
// A kernel that harness/kernels has not taken over: loud, as a silent one would be wrong numbers.
ACL_FUNCTION aclError aclopCompileAndExecute(const char* type,
                                             int /*num_inputs*/,
                                             const aclTensorDesc* const /*input_descs*/[],
                                             const aclDataBuffer* const /*inputs*/[],
                                             int /*num_outputs*/,
                                             const aclTensorDesc* const /*output_descs*/[],
                                             aclDataBuffer* const /*outputs*/[],
                                             const aclopAttr* /*attributes*/,
                                             aclopEngineType /*engine*/,
                                             aclopCompileType /*compile*/,
                                             const char* /*path*/,
                                             aclrtStream /*stream*/) {
  const Locked machine;
  std::fprintf(stderr, "fake CANN: no kernel for %s\n", type);
  machine->log.say("KERNEL", type);
  return ACL_ERROR_OP_NOT_FOUND;
}
