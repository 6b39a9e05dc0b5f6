// Making and checking the head of a safetensors file.
#include "swapline/checkpoint/tensor_file_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

namespace swapline::detail {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kMostHeaderBytes = 100'000'000;  // what other readers allow
constexpr size_t kAlignment = 8;
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kShardingInfo = "DCP_SHARDING_INFO";
constexpr const char* kSavedOffsets = "saved_offsets";

constexpr std::array<std::pair<at::ScalarType, std::string_view>, 10> kDtypes = {
    {{at::kDouble, "F64"},
     {at::kFloat, "F32"},
     {at::kHalf, "F16"},
     {at::kBFloat16, "BF16"},
     {at::kLong, "I64"},
     {at::kInt, "I32"},
     {at::kShort, "I16"},
     {at::kChar, "I8"},
     {at::kByte, "U8"},
     {at::kBool, "BOOL"}}};

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const auto& [dtype, its_name] : kDtypes) {
    if (its_name == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

class Header {
 public:
  explicit Header(const std::string& path) : path_(path) {}

  std::vector<StoredTensor> read() {
    const Json header = parse();
    read_sharding_info(header);
    std::vector<StoredTensor> tensors;
    for (const auto& [name, entry] : header.items()) {
      if (name != kMetadata) {
        tensors.push_back(tensor(name, entry));
      }
    }
    std::sort(tensors.begin(), tensors.end(), [](const auto& one, const auto& other) {
      return std::tie(one.begin, one.bytes) < std::tie(other.begin, other.bytes);
    });
    check_places(tensors);
    return tensors;
  }

 private:
  Json parse() {
    std::error_code error;
    const bool is_file = std::filesystem::is_regular_file(path_, error);
    TORCH_CHECK(is_file, path_, ": there is no such file");
    const size_t file_bytes = std::filesystem::file_size(path_, error);
    std::ifstream file(path_, std::ios::binary);
    TORCH_CHECK(!error && file.is_open(), path_, ": cannot be read");
    std::array<unsigned char, kLengthBytes> length{};
    file.read(reinterpret_cast<char*>(length.data()), kLengthBytes);
    TORCH_CHECK(file_bytes >= kLengthBytes && file,
                path_,
                ": found ",
                file_bytes,
                " bytes, a safetensors file has at least ",
                kLengthBytes);
    uint64_t header_bytes = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) {
      header_bytes |= uint64_t{length[i]} << (8 * i);
    }
    TORCH_CHECK(header_bytes <= kMostHeaderBytes && header_bytes <= file_bytes - kLengthBytes,
                path_,
                ": its first bytes give a header of ",
                header_bytes,
                " bytes, and the file has ",
                file_bytes,
                ": it is truncated or no safetensors file");
    std::string text(header_bytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(header_bytes));
    TORCH_CHECK(file, path_, ": its header cannot be read");
    data_begin_ = kLengthBytes + header_bytes;
    data_bytes_ = file_bytes - data_begin_;
    return parse(text);
  }

  // Names are looked at while parsing: afterwards the first of two equal ones would be gone.
  Json parse(const std::string& text) const {
    std::set<std::string> names;
    std::string twice;
    const auto note_names = [&](int depth, Json::parse_event_t event, const Json& value) {
      if (event == Json::parse_event_t::key && depth == 1 &&
          !names.insert(value.get<std::string>()).second) {
        twice = value.get<std::string>();
      }
      return true;
    };
    Json header = Json::parse(text, note_names, /*allow_exceptions=*/false);
    TORCH_CHECK(header.is_object(), path_, ": its header is no JSON object");
    TORCH_CHECK(twice.empty(), path_, ": ", twice, " is there twice");
    return header;
  }

  void read_sharding_info(const Json& header) {
    const auto metadata = header.find(kMetadata);
    if (metadata == header.end()) {
      return;
    }
    TORCH_CHECK(metadata->is_object(), path_, ": ", kMetadata, " is no JSON object");
    const auto info = metadata->find(kShardingInfo);
    if (info == metadata->end()) {
      return;
    }
    TORCH_CHECK(info->is_string(), path_, ": ", kShardingInfo, " is no text");
    sharding_ = Json::parse(info->get<std::string>(), nullptr, /*allow_exceptions=*/false);
    TORCH_CHECK(sharding_.is_object(), path_, ": ", kShardingInfo, " is no JSON object");
  }

  StoredTensor tensor(const std::string& name, const Json& entry) const {
    StoredTensor made;
    made.name = name;
    TORCH_CHECK(entry.is_object() && entry.contains("dtype") && entry["dtype"].is_string() &&
                    entry.contains("shape") && entry.contains("data_offsets"),
                path_,
                ": ",
                name,
                " has no dtype, shape and data_offsets");
    const auto dtype = dtype_of(entry["dtype"].get<std::string>());
    TORCH_CHECK(dtype.has_value(),
                path_,
                ": ",
                name,
                ": found dtype ",
                entry["dtype"].get<std::string>(),
                ", allowed are ",
                dtype_names());
    made.dtype = *dtype;
    made.sizes = numbers(name, "shape", entry["shape"]);
    const std::vector<int64_t> ends = numbers(name, "data_offsets", entry["data_offsets"]);
    TORCH_CHECK(ends.size() == 2 && ends[0] <= ends[1],
                path_,
                ": ",
                name,
                ": data_offsets are no begin and end");
    made.begin = static_cast<size_t>(ends[0]);
    made.bytes = static_cast<size_t>(ends[1] - ends[0]);
    TORCH_CHECK(static_cast<size_t>(ends[1]) <= data_bytes_,
                path_,
                ": ",
                name,
                " ends at byte ",
                ends[1],
                " of ",
                data_bytes_,
                ": the file is truncated");
    check_bytes(made);
    made.offsets.assign(made.sizes.size(), 0);
    if (sharding_.is_object()) {
      read_offsets(made);
    }
    return made;
  }

  std::vector<int64_t> numbers(const std::string& name, const char* field, const Json& list) const {
    std::vector<int64_t> numbers;
    bool is_good = list.is_array();
    for (const Json& number : list) {
      is_good = is_good && number.is_number_integer() && number.get<int64_t>() >= 0;
      if (is_good) {
        numbers.push_back(number.get<int64_t>());
      }
    }
    TORCH_CHECK(is_good, path_, ": ", name, ": ", field, " is no list of numbers from 0 on");
    return numbers;
  }

  // Sizes that overflow are longer than any file.
  void check_bytes(const StoredTensor& tensor) const {
    size_t bytes = c10::elementSize(tensor.dtype);
    bool fits = true;
    for (const int64_t size : tensor.sizes) {
      fits = !__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes) && fits;
    }
    const bool is_empty = std::count(tensor.sizes.begin(), tensor.sizes.end(), 0) > 0;
    TORCH_CHECK(is_empty ? tensor.bytes == 0 : fits && bytes == tensor.bytes,
                path_,
                ": ",
                tensor.name,
                " has ",
                tensor.bytes,
                " bytes, and its shape and dtype need others");
  }

  void read_offsets(StoredTensor& tensor) const {
    const auto info = sharding_.find(tensor.name);
    TORCH_CHECK(info != sharding_.end() && info->is_object() && info->contains(kSavedOffsets),
                path_,
                ": ",
                tensor.name,
                " is not in ",
                kShardingInfo);
    tensor.offsets = numbers(tensor.name, kSavedOffsets, (*info)[kSavedOffsets]);
    TORCH_CHECK(tensor.offsets.size() == tensor.sizes.size(),
                path_,
                ": ",
                tensor.name,
                ": ",
                kSavedOffsets,
                " are not one for each dimension");
  }

  void check_places(std::vector<StoredTensor>& tensors) const {
    size_t end = 0;
    for (StoredTensor& tensor : tensors) {
      TORCH_CHECK(tensor.begin == end,
                  path_,
                  ": ",
                  tensor.name,
                  " begins at byte ",
                  tensor.begin,
                  ", the one before ends at ",
                  end);
      end += tensor.bytes;
      tensor.begin += data_begin_;
    }
    TORCH_CHECK(end == data_bytes_,
                path_,
                ": its tensors have ",
                end,
                " bytes, the file ",
                data_bytes_,
                " behind the header");
  }

  const std::string& path_;
  size_t data_begin_ = 0;
  size_t data_bytes_ = 0;
  Json sharding_;
};

}  // namespace

std::optional<std::string_view> dtype_name(at::ScalarType dtype) {
  for (const auto& [its_dtype, name] : kDtypes) {
    if (its_dtype == dtype) {
      return name;
    }
  }
  return std::nullopt;
}

std::string dtype_names() {
  std::string names;
  for (const auto& [dtype, name] : kDtypes) {
    names.append(names.empty() ? "" : ", ").append(name);
  }
  return names;
}

std::string header_text(const std::vector<StoredTensor>& tensors) {
  Json sharding = Json::object();
  for (const StoredTensor& tensor : tensors) {
    sharding[tensor.name] = {{kSavedOffsets, tensor.offsets}};
  }
  Json header;
  header[kMetadata] = {{kShardingInfo, sharding.dump()}, {"DCP_VERSION", "1.0"}, {"format", "pt"}};
  size_t begin = 0;
  for (const StoredTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", *dtype_name(tensor.dtype)},
                           {"shape", tensor.sizes},
                           {"data_offsets", {begin, begin + tensor.bytes}}};
    begin += tensor.bytes;
  }
  std::string json = header.dump();
  json.resize((json.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  std::string text;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    text.push_back(static_cast<char>((uint64_t{json.size()} >> (8 * i)) & 0xFF));
  }
  return text + json;
}

std::vector<StoredTensor> read_header(const std::string& path) {
  return Header(path).read();
}

}  // namespace swapline::detail
