#include "swapline/device/backend.h"

#include "swapline/device/backend_files.h"
#include "swapline/device/loaded_library.h"
#include "swapline/device/python_interpreter.h"

#include <stdexcept>

#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace swapline {
namespace {

namespace fs = std::filesystem;

bool is_there(const std::string& type) {
  using c10::DeviceType;
  if (type == "cpu") {
    return true;
  }
  if (type == "cuda" || type == "xpu") {
    return c10::impl::hasDeviceGuardImpl(type == "cuda" ? DeviceType::CUDA : DeviceType::XPU);
  }
  // All other devices share one type, under the name that was given to it.
  return c10::get_privateuse1_backend() == type &&
         c10::impl::hasDeviceGuardImpl(DeviceType::PrivateUse1);
}

fs::path torch_library_folder() {
  const fs::path folder = detail::folder_of_loaded("libtorch_cpu.so");
  if (folder.empty()) {
    throw std::runtime_error(
        "no libtorch_cpu.so is loaded: this torch is linked in, with no devices "
        "beside the ones it was linked with");
  }
  return folder;
}

// The place for devices of libraries outside of torch is free.
void check_place_for(const std::string& type) {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::PrivateUse1)) {
    throw std::runtime_error("torch has a place for one device from outside of it, and has \"" +
                             c10::get_privateuse1_backend() + "\" there: use " + type +
                             " in a process of its own");
  }
}

}  // namespace

namespace detail {

void load_part_of_torch(const std::string& type, const fs::path& folder) {
  const std::string name = "libtorch_" + type + ".so";
  if (!fs::exists(folder / name)) {
    throw std::runtime_error("no " + name + " in " + folder.string() +
                             ": this torch was built without " + type +
                             "; install the build of torch that has it, of the same version");
  }
  const std::string failure = load_for_all(folder / name);
  if (!failure.empty()) {
    throw std::runtime_error(name + " in " + folder.string() + " does not load: " + failure);
  }
}

void load_simulator(const fs::path& folder) {
  check_place_for("sim");
  const std::string failure = load_for_all(folder / "libswapline_sim.so");
  if (!failure.empty()) {
    throw std::runtime_error(
        "libswapline_sim.so does not load, which lies beside libswapline.so: " + failure);
  }
}

bool load_torch_npu(const fs::path& folder) {
  const fs::path package = folder.parent_path().parent_path() / "torch_npu";
  if (!fs::exists(package / "lib" / "libtorch_npu.so")) {
    throw std::runtime_error("no libtorch_npu.so in " + (package / "lib").string() +
                             ": install torch_npu of this torch's version beside torch");
  }
  check_place_for("npu");
  return import_in_python(python_home(package), "torch_npu");
}

}  // namespace detail

Backend::Backend(const std::string& type) {
  if (is_there(type)) {
    return;
  }
  if (type == "cuda" || type == "xpu") {
    detail::load_part_of_torch(type, torch_library_folder());
  } else if (type == "sim") {
    detail::load_simulator(detail::folder_of_loaded("libswapline.so"));
  } else if (type == "npu") {
    started_python_ = detail::load_torch_npu(torch_library_folder());
  } else {
    throw std::runtime_error("found device type \"" + type +
                             "\", allowed are cpu, cuda, xpu, npu and sim");
  }
  if (!is_there(type)) {
    throw std::runtime_error("the library of " + type + " is loaded, and torch has no such device");
  }
}

Backend::~Backend() {
  if (started_python_) {
    detail::run_exit_functions_of_python();
  }
}

}  // namespace swapline
