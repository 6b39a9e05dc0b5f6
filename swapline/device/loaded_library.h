// Shared libraries of this process: where they came from, and loading more.
#pragma once

#include <filesystem>
#include <string>

namespace swapline::detail {

// The folder that the library of this soname was loaded from; empty: it is not loaded.
std::filesystem::path folder_of_loaded(const char* soname);

// Loads a library for good, with its symbols for all that is loaded later. "": done; else the
// loader's reason.
std::string load_for_all(const std::filesystem::path& library);

}  // namespace swapline::detail
