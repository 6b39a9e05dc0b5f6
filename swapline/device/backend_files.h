// How Backend loads, given the folder that torch's libraries lie in.
#pragma once

#include <filesystem>
#include <string>

namespace swapline::detail {

// libtorch_TYPE.so of this folder. Throws: std::runtime_error, as Backend does.
void load_part_of_torch(const std::string& type, const std::filesystem::path& folder);

// libswapline_sim.so of this folder, that of libswapline.so. Throws: std::runtime_error.
void load_simulator(const std::filesystem::path& folder);

// torch_npu of the same site-packages; true: Python was started for it.
// Throws: std::runtime_error, as Backend does.
bool load_torch_npu(const std::filesystem::path& folder);

}  // namespace swapline::detail
