// The head of a safetensors file: 8 bytes of length, JSON, and from there on the tensors' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

namespace swapline::detail {

// A box of a tensor; nearly always all of it.
struct StoredTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> offsets;  // in the whole tensor, one for each dimension
  size_t begin = 0;              // of its bytes, from the start of the file
  size_t bytes = 0;
};

// "F32"; nullopt for a dtype that these files do not have.
std::optional<std::string_view> dtype_name(at::ScalarType dtype);
// All of them, for errors: "F64, F32, ...".
std::string dtype_names();

// The head of a file that holds these one behind the other, padded so that the bytes behind it
// start at a multiple of 8. `begin` is not read.
std::string header_text(const std::vector<StoredTensor>& tensors);

// The file that says which tensor is in which file of a folder.
inline constexpr const char* kIndexName = "model.safetensors.index.json";

// Reads and checks a file's head: every byte behind it belongs to exactly one tensor. In the order
// of their bytes. Throws c10::Error that names the file, and the tensor where there is one.
std::vector<StoredTensor> read_header(const std::string& path);

}  // namespace swapline::detail
