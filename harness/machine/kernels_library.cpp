#include "harness/machine/kernels_library.h"

#include <atomic>
#include <cstdio>
#include <filesystem>

#include <dlfcn.h>

namespace swapline::harness {

void load_kernels() {
  static std::atomic<bool> is_done{false};  // what is loaded may ask for the devices, too
  Dl_info runtime;
  if (is_done.exchange(true) ||
      dladdr(reinterpret_cast<const void*>(&load_kernels), &runtime) == 0) {
    return;
  }
  // The wheel may have found the runtime by a link.
  std::error_code is_gone;
  const auto folder = std::filesystem::canonical(runtime.dli_fname, is_gone).parent_path();
  const auto library = folder / "libharness_kernels.so";
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "harness: no kernels: %s\n", dlerror());
  }
}

}  // namespace swapline::harness
