// From the heads of files to the places of tensors, and their bytes.
#include "swapline/checkpoint/tensor_reader.h"

#include "swapline/checkpoint/tensor_file_header.h"
#include "swapline/checkpoint/tensor_rows.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace swapline {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostBytesAtOnce = size_t{1} << 30;

class InputFile {
 public:
  explicit InputFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    TORCH_CHECK(file_ >= 0, path_, ": cannot be read: ", std::strerror(errno));
  }
  ~InputFile() { ::close(file_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  void read(void* data, size_t bytes, size_t begin, const std::string& name) const {
    auto* next = static_cast<char*>(data);
    while (bytes > 0) {
      const ssize_t count =
          ::pread(file_, next, std::min(bytes, kMostBytesAtOnce), static_cast<off_t>(begin));
      if (count < 0 && errno == EINTR) {
        continue;
      }
      TORCH_CHECK(count > 0,
                  path_,
                  ": ",
                  name,
                  ": reading failed: ",
                  count == 0 ? "the file has become shorter" : std::strerror(errno));
      next += count;
      begin += static_cast<size_t>(count);
      bytes -= static_cast<size_t>(count);
    }
  }

 private:
  const std::string& path_;
  int file_;
};

std::string sizes_text(at::IntArrayRef sizes) {
  std::string text;
  for (const int64_t size : sizes) {
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  }
  return "[" + text + "]";
}

int64_t num_rows(at::IntArrayRef sizes) {
  return sizes.empty() ? 1 : sizes.front();
}

// Bytes of one row; 0 for a tensor without elements.
size_t row_bytes(const TensorEntry& entry) {
  size_t bytes = c10::elementSize(entry.dtype);
  for (size_t i = 1; i < entry.sizes.size(); ++i) {
    bytes *= static_cast<size_t>(entry.sizes[i]);
  }
  return bytes;
}

}  // namespace

TensorReader::TensorReader(const std::string& path) : path_(path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    add_file(path);
  } else if (fs::exists(fs::path(path) / detail::kIndexName, error)) {
    check_index(path);
  } else {
    std::vector<std::string> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      if (entry.path().extension() == ".safetensors") {
        files.push_back(entry.path().string());
      }
    }
    TORCH_CHECK(!files.empty(), path, ": found neither ", detail::kIndexName, " nor .safetensors");
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
      add_file(file);
    }
  }
  join_pieces();
}

void TensorReader::add_file(const std::string& path) {
  for (const detail::StoredTensor& stored : detail::read_header(path)) {
    const bool is_whole_rows =
        std::all_of(stored.offsets.begin() + (stored.offsets.empty() ? 0 : 1),
                    stored.offsets.end(),
                    [](int64_t offset) { return offset == 0; });
    TORCH_CHECK(is_whole_rows,
                path,
                ": ",
                stored.name,
                ": found a shard at ",
                sizes_text(stored.offsets),
                ", allowed are shards along the first dimension");
    auto [entry, is_new] =
        entries_.try_emplace(stored.name, TensorEntry{stored.dtype, stored.sizes});
    const std::vector<int64_t>& sizes = entry->second.sizes;
    const bool fits =
        is_new || (entry->second.dtype == stored.dtype && !sizes.empty() &&
                   sizes.size() == stored.sizes.size() &&
                   std::equal(sizes.begin() + 1, sizes.end(), stored.sizes.begin() + 1));
    TORCH_CHECK(fits, path, ": ", stored.name, " is in another file too, and does not fit to it");
    pieces_[stored.name].push_back({path,
                                    stored.begin,
                                    stored.offsets.empty() ? 0 : stored.offsets.front(),
                                    num_rows(stored.sizes)});
  }
}

void TensorReader::check_index(const std::string& folder) {
  const std::string path = (fs::path(folder) / detail::kIndexName).string();
  std::ifstream file(path, std::ios::binary);
  const auto index = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const bool has_map =
      index.is_object() && index.contains("weight_map") && index["weight_map"].is_object();
  TORCH_CHECK(has_map, path, ": is no JSON object with a weight_map");
  std::map<std::string, std::vector<std::string>> names_of_file;
  for (const auto& [name, its_file] : index["weight_map"].items()) {
    // A name with a folder in it could lead anywhere.
    TORCH_CHECK(its_file.is_string() && its_file.get<std::string>().find('/') == std::string::npos,
                path,
                ": ",
                name,
                ": found ",
                its_file.dump(),
                ", allowed is the name of a file");
    names_of_file[its_file.get<std::string>()].push_back(name);
  }
  for (const auto& [its_file, names] : names_of_file) {
    const std::string its_path = (fs::path(folder) / its_file).string();
    std::error_code error;
    TORCH_CHECK(
        fs::exists(its_path, error), its_path, ": is missing: ", path, " has ", names[0], " in it");
    add_file(its_path);
    for (const std::string& name : names) {
      const auto pieces = pieces_.find(name);
      TORCH_CHECK(pieces != pieces_.end() && pieces->second.back().file == its_path,
                  its_path,
                  ": ",
                  name,
                  " is missing: ",
                  path,
                  " says it is here");
    }
  }
}

void TensorReader::join_pieces() {
  for (auto& [name, pieces] : pieces_) {
    std::sort(pieces.begin(), pieces.end(), [](const Piece& one, const Piece& other) {
      return std::tie(one.first_row, one.num_rows) < std::tie(other.first_row, other.num_rows);
    });
    int64_t end = 0;
    for (const Piece& piece : pieces) {
      TORCH_CHECK(piece.first_row == end,
                  piece.file,
                  ": ",
                  name,
                  " begins at row ",
                  piece.first_row,
                  ", and the files before it end at row ",
                  end);
      end += piece.num_rows;
    }
    if (!entries_.at(name).sizes.empty()) {
      entries_.at(name).sizes.front() = end;
    }
  }
}

void TensorReader::check(std::span<const TensorTarget> targets) const {
  for (const TensorTarget& target : targets) {
    const auto found = entries_.find(target.name);
    TORCH_CHECK(found != entries_.end(), path_, ": ", target.name, " is missing");
    const TensorEntry& entry = found->second;
    const at::Tensor& tensor = target.tensor;
    TORCH_CHECK(tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided,
                target.name,
                ": can be read only to a dense tensor on the host");
    TORCH_CHECK(tensor.scalar_type() == entry.dtype,
                path_,
                ": ",
                target.name,
                ": found dtype ",
                *detail::dtype_name(entry.dtype),
                ", allowed is ",
                detail::dtype_name(tensor.scalar_type()).value_or("none for this tensor"));
    std::vector<int64_t> sizes = entry.sizes;
    const int64_t last_row = target.first_row + num_rows(tensor.sizes());
    if (target.is_part && !sizes.empty() && tensor.dim() > 0 && target.first_row >= 0 &&
        last_row <= sizes.front()) {
      sizes.front() = tensor.size(0);
    }
    TORCH_CHECK(at::IntArrayRef(sizes) == tensor.sizes(),
                path_,
                ": ",
                target.name,
                ": found shape ",
                sizes_text(entry.sizes),
                ", allowed is ",
                sizes_text(tensor.sizes()),
                target.is_part ? " from row " + std::to_string(target.first_row) : "");
  }
}

void TensorReader::read(std::span<const TensorTarget> targets) const {
  check(targets);
  for (const TensorTarget& target : targets) {
    read(target);
  }
}

void TensorReader::read(const TensorTarget& target) const {
  const TensorEntry& entry = entries_.at(target.name);
  const auto bytes_per_row = row_bytes(entry);
  const int64_t end = target.first_row + num_rows(target.tensor.sizes());
  for (const Piece& piece : pieces_.at(target.name)) {
    const int64_t first = std::max(piece.first_row, target.first_row);
    const int64_t last = std::min(piece.first_row + piece.num_rows, end);
    if (first >= last || bytes_per_row == 0) {
      continue;
    }
    const at::Tensor rows = entry.sizes.empty()
                                ? target.tensor
                                : target.tensor.narrow(0, first - target.first_row, last - first);
    const InputFile file(piece.file);
    size_t begin = piece.begin + static_cast<size_t>(first - piece.first_row) * bytes_per_row;
    detail::for_each_piece(rows, detail::PieceUse::kWrite, [&](void* data, size_t bytes) {
      file.read(data, bytes, begin, target.name);
      begin += bytes;
    });
  }
}

}  // namespace swapline
