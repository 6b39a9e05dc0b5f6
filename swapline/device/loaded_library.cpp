#include "swapline/device/loaded_library.h"

#include <dlfcn.h>
#include <link.h>

namespace swapline::detail {

std::filesystem::path folder_of_loaded(const char* soname) {
  void* handle = dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) {
    return {};
  }
  link_map* loaded = nullptr;
  const bool is_known = dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&loaded)) == 0;
  const std::filesystem::path path = is_known ? loaded->l_name : "";
  dlclose(handle);
  return path.empty() ? path : std::filesystem::absolute(path).parent_path();
}

std::string load_for_all(const std::filesystem::path& library) {
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) {
    return "";
  }
  const char* reason = dlerror();
  return reason == nullptr ? "no reason given" : reason;
}

}  // namespace swapline::detail
