#include "swapline/device/python_interpreter.h"

#include "swapline/device/loaded_library.h"

#include <fstream>
#include <stdexcept>

#include <dlfcn.h>

namespace swapline::detail {
namespace {

namespace fs = std::filesystem;

// A function of libpython's: there are no headers of Python where programs are built.
template <class Function>
Function* python(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

bool is_python_loaded() {
  return python<int()>("Py_IsInitialized") != nullptr;
}

fs::path prefix_of(const PythonHome& home) {
  return home.packages.parent_path().parent_path().parent_path();
}

// Where a virtual environment's Python was installed; empty: this is none.
fs::path base_of_environment(const fs::path& prefix) {
  std::ifstream settings(prefix / "pyvenv.cfg");
  const std::string home = "home = ";
  for (std::string line; std::getline(settings, line);) {
    if (line.starts_with(home)) {
      return fs::path(line.substr(home.size())).parent_path();
    }
  }
  return {};
}

void load_libpython(const PythonHome& home) {
  std::string looked_in;
  for (const fs::path& library : libpython_candidates(home)) {
    if (load_for_all(library).empty()) {
      return;
    }
    looked_in += (looked_in.empty() ? "" : ", ") +
                 (library.has_parent_path() ? library.parent_path().string() : "the library path");
  }
  throw std::runtime_error("no libpython" + home.version + ".so.1.0, looked for in " + looked_in +
                           ": install it (Debian: libpython" + home.version +
                           "), or name its folder in LD_LIBRARY_PATH");
}

class PythonLock {
 public:
  PythonLock() : state_(python<int()>("PyGILState_Ensure")()) {}
  ~PythonLock() { python<void(int)>("PyGILState_Release")(state_); }
  PythonLock(const PythonLock&) = delete;
  PythonLock& operator=(const PythonLock&) = delete;

 private:
  int state_;
};

void run_in_python(const std::string& code) {
  const PythonLock lock;
  python<int(const char*, void*)>("PyRun_SimpleStringFlags")(code.c_str(), nullptr);
}

void start_python(const PythonHome& home) {
  // From its own executable Python finds its library, and an environment's packages.
  static const std::wstring executable = (prefix_of(home) / "bin" / "python3").wstring();
  auto* set_program_name = python<void(const wchar_t*)>("Py_SetProgramName");
  if (set_program_name != nullptr && fs::exists(executable)) {
    set_program_name(executable.c_str());
  }
  constexpr int kLeaveSignalsAlone = 0;
  python<void(int)>("Py_InitializeEx")(kLeaveSignalsAlone);
  python<void*()>("PyEval_SaveThread")();
}

std::string hex(const std::string& text) {
  std::string digits;
  for (const unsigned char byte : text) {
    digits += "0123456789abcdef"[byte / 16];
    digits += "0123456789abcdef"[byte % 16];
  }
  return digits;
}

constexpr const char* kImport = R"(
def swapline_import(folder, package):
    import importlib, os, sys
    folder = os.fsdecode(bytes.fromhex(folder))
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        importlib.import_module(package)
        sys.swapline_failure = ""
    except BaseException as error:
        sys.swapline_failure = f"{type(error).__name__}: {error}"
)";

// "" where the import went well.
std::string failure_of_import(const PythonHome& home, const std::string& package) {
  const PythonLock lock;
  const std::string code = std::string(kImport) + "swapline_import('" +
                           hex(home.packages.string()) + "', '" + package + "')\n";
  if (python<int(const char*, void*)>("PyRun_SimpleStringFlags")(code.c_str(), nullptr) != 0) {
    return "Python does not run";
  }
  void* failure = python<void*(const char*)>("PySys_GetObject")("swapline_failure");
  const char* text =
      failure == nullptr ? nullptr : python<const char*(void*)>("PyUnicode_AsUTF8")(failure);
  return text == nullptr ? "" : text;
}

}  // namespace

PythonHome python_home(const fs::path& package) {
  const std::string before = "_C.cpython-3";
  std::error_code unreadable;
  for (const auto& file : fs::directory_iterator(package, unreadable)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with(before)) {
      const std::string minor =
          name.substr(before.size(), name.find('-', before.size()) - before.size());
      return {package.parent_path(), "3." + minor};
    }
  }
  throw std::runtime_error(
      "no _C.cpython-3….so in " + package.string() +
      ", so it is not known for which Python this package is: install it again");
}

std::vector<fs::path> libpython_candidates(const PythonHome& home) {
  const std::string name = "libpython" + home.version + ".so.1.0";
  const fs::path prefix = prefix_of(home);
  std::vector<fs::path> candidates = {prefix / "lib" / name};
  if (const fs::path base = base_of_environment(prefix); !base.empty()) {
    candidates.push_back(base / "lib" / name);
  }
  candidates.emplace_back(name);
  return candidates;
}

bool import_in_python(const PythonHome& home, const std::string& package) {
  if (!is_python_loaded()) {
    load_libpython(home);
  }
  const bool starts = python<int()>("Py_IsInitialized")() == 0;
  if (starts) {
    start_python(home);
  }
  const std::string failure = failure_of_import(home, package);
  if (!failure.empty()) {
    throw std::runtime_error("import " + package + " from " + home.packages.string() +
                             " failed in Python " + home.version + ": " + failure);
  }
  return starts;
}

void run_exit_functions_of_python() {
  run_in_python("import atexit\natexit._run_exitfuncs()\n");
}

}  // namespace swapline::detail
