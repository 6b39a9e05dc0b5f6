// Reads tensors of safetensors files into host tensors that are there already.
#pragma once

#include "swapline/export.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

struct TensorEntry {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
};

// Where a tensor, or some rows of it, are to be read to.
struct TensorTarget {
  std::string name;
  at::Tensor tensor;      // on the host; takes all rows from first_row that it has place for
  int64_t first_row = 0;  // of the stored tensor's first dimension
  bool is_part = false;   // the tensor may have fewer rows than the stored one
};

class SWAPLINE_API TensorReader {
 public:
  // `path`: a safetensors file; a folder with model.safetensors.index.json; or a folder of
  // safetensors files, in which a tensor may be spread over files along its first dimension
  // (DCP_SHARDING_INFO). Every file's head is read and checked, no tensor is read.
  // Throws c10::Error that names the file, and the tensor where there is one.
  explicit TensorReader(const std::string& path);

  const std::map<std::string, TensorEntry>& entries() const { return entries_; }
  bool contains(const std::string& name) const { return entries_.count(name) != 0; }

  // Throws c10::Error that names the path and the tensor if one of them is not there or is of
  // another dtype or shape.
  void check(std::span<const TensorTarget> targets) const;
  // Checks all, then reads: bytes go from the file to the tensor's own memory; a tensor with other
  // strides is filled through a small buffer. Nothing is changed when a check fails.
  void read(std::span<const TensorTarget> targets) const;

 private:
  // Rows of a tensor, in one file.
  struct Piece {
    std::string file;
    size_t begin = 0;  // of its bytes in the file
    int64_t first_row = 0;
    int64_t num_rows = 0;
  };

  void add_file(const std::string& path);
  void check_index(const std::string& folder);
  void join_pieces();
  void read(const TensorTarget& target) const;

  std::string path_;
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, std::vector<Piece>> pieces_;  // in the order of their rows
};

}  // namespace swapline
