// Python inside a program that was not linked to it: for libraries that only Python initialises.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace swapline::detail {

// Where a Python keeps its packages, as told by one of them.
struct PythonHome {
  std::filesystem::path packages;  // the folder that the package is in: site-packages
  std::string version;             // "3.11", from the name of the package's module
};

// Throws: std::runtime_error where `package` has no module named _C.cpython-3X-….so.
PythonHome python_home(const std::filesystem::path& package);

// The files that may be this Python's shared library, best first; the last one is a mere name, for
// the loader to look for.
std::vector<std::filesystem::path> libpython_candidates(const PythonHome& home);

// Imports a package into the interpreter of this process; starts one for good where there is none,
// and says so. Python's lock is not held afterwards.
// Throws: std::runtime_error with Python's error, or where libpython is not found.
bool import_in_python(const PythonHome& home, const std::string& package);

// What packages have asked to be called when Python ends; for the one who has started it. Static
// objects' destructors are too late for this: libraries' own run before.
void run_exit_functions_of_python();

}  // namespace swapline::detail
