// Kernels of torch's own, registered and launched, that compute nothing: each launch is a line in
// the log. Operators whose numbers count are computed by harness/kernels.
#include "harness/fake_cuda/cudart.h"

#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

using swapline::harness::Locked;
using swapline::harness::stream_of_vendor;

namespace {

struct Configuration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  void* stream = nullptr;
};

thread_local std::vector<Configuration> configurations;

std::unordered_map<const void*, std::string>& kernels() {
  static auto* all = new std::unordered_map<const void*, std::string>();
  return *all;
}

cudaError_t launch(const void* function, void* stream) {
  ON_MACHINE
  const auto found = kernels().find(function);
  machine->log.say("KERNEL", found == kernels().end() ? "unknown" : found->second);
  machine->launch(stream_of_vendor(stream), "a kernel that computes nothing", {}, {});
  return cudaSuccess;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* /*binary*/) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void** /*handle*/) {}
void __cudaUnregisterFatBinary(void** /*handle*/) {}
void __cudaRegisterFunction(void** /*handle*/,
                            const char* host,
                            char* /*device*/,
                            const char* name,
                            int /*limit*/,
                            uint3* /*thread*/,
                            uint3* /*block*/,
                            dim3* /*block_dim*/,
                            dim3* /*grid_dim*/,
                            int* /*warp_size*/) {
  const Locked machine;
  kernels()[host] = name;
}
void __cudaRegisterVar(void** /*handle*/,
                       char* /*host*/,
                       char* /*address*/,
                       const char* /*name*/,
                       int /*is_extern*/,
                       size_t /*bytes*/,
                       int /*is_constant*/,
                       int /*is_global*/) {}
char __cudaInitModule(void** /*handle*/) {
  return 0;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid,
                                       dim3* block,
                                       size_t* shared_bytes,
                                       void* stream) {
  const Configuration configuration = configurations.back();
  configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel,
                               dim3 /*grid*/,
                               dim3 /*block*/,
                               void** /*arguments*/,
                               size_t /*shared_bytes*/,
                               cudaStream_t stream) {
  return launch(kernel, stream);
}
cudaError_t cudaLaunchKernel(const void* function,
                             dim3 /*grid*/,
                             dim3 /*block*/,
                             void** /*arguments*/,
                             size_t /*shared_bytes*/,
                             cudaStream_t stream) {
  return launch(function, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                const void* function,
                                void** /*arguments*/) {
  return launch(function, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* /*function*/) {
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = 90;
  attributes->ptxVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* /*function*/,
                                 cudaFuncAttribute /*attribute*/,
                                 int /*value*/) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks,
                                                                   const void* /*function*/,
                                                                   int /*block_size*/,
                                                                   size_t /*shared_bytes*/,
                                                                   unsigned /*flags*/) {
  *blocks = 2;
  return cudaSuccess;
}

}  // extern "C"
