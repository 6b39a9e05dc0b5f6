// Spreading tensors over files, and their bytes in row-major order.
#include "swapline/checkpoint/tensor_writer.h"

#include "swapline/checkpoint/tensor_file_header.h"
#include "swapline/checkpoint/tensor_rows.h"

#include <cstdio>
#include <set>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

namespace swapline {
namespace {

using detail::StoredTensor;
using Json = nlohmann::json;

bool is_utf8(const std::string& text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::type_error&) {
    return false;
  }
}

void check_part(const std::string& name, const at::Tensor& part, const at::Tensor& first) {
  TORCH_CHECK(part.defined() && part.layout() == at::kStrided && part.device().is_cpu(),
              name,
              ": found ",
              part.defined() ? "a tensor on " + part.device().str() : "an undefined tensor",
              ", allowed are dense tensors on the host");
  TORCH_CHECK(
      detail::dtype_name(part.scalar_type()).has_value() && !part.is_conj() && !part.is_neg(),
      name,
      ": found dtype ",
      part.scalar_type(),
      ", allowed are ",
      detail::dtype_names());
  const bool fits = part.is_same(first) ||
                    (part.scalar_type() == first.scalar_type() && part.dim() > 0 &&
                     part.dim() == first.dim() && part.sizes().slice(1) == first.sizes().slice(1));
  TORCH_CHECK(fits, name, ": its parts differ in more than their first size");
}

StoredTensor stored(const NamedTensor& tensor) {
  TORCH_CHECK(!tensor.name.empty() && tensor.name != "__metadata__" && is_utf8(tensor.name),
              "found \"",
              tensor.name,
              "\" as the name of a tensor, allowed is UTF-8 other than __metadata__");
  TORCH_CHECK(!tensor.parts.empty(), tensor.name, ": it has no parts");
  const at::Tensor& first = tensor.parts.front();
  StoredTensor made;
  made.name = tensor.name;
  for (const at::Tensor& part : tensor.parts) {
    check_part(tensor.name, part, first);
    made.bytes += part.nbytes();
  }
  made.dtype = first.scalar_type();
  made.sizes = first.sizes().vec();
  made.offsets.assign(made.sizes.size(), 0);
  for (size_t i = 1; i < tensor.parts.size(); ++i) {
    made.sizes.front() += tensor.parts[i].size(0);
  }
  return made;
}

struct TensorFile {
  std::vector<StoredTensor> heads;
  std::vector<const NamedTensor*> tensors;
  size_t bytes = 0;
};

std::vector<TensorFile> plan_files(std::span<const NamedTensor> tensors, size_t file_bytes) {
  std::vector<TensorFile> files(1);
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    StoredTensor head = stored(tensor);
    TORCH_CHECK(names.insert(tensor.name).second, tensor.name, " is there twice");
    if (files.back().bytes > 0 && files.back().bytes + head.bytes > file_bytes) {
      files.emplace_back();
    }
    TensorFile& file = files.back();
    file.bytes += head.bytes;
    file.heads.push_back(std::move(head));
    file.tensors.push_back(&tensor);
  }
  return files;
}

std::string file_name(size_t index, size_t count) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

void write_file(FileOps& ops, const std::string& path, const TensorFile& plan) {
  const std::unique_ptr<OutputFile> file = ops.create(path);
  const std::string header = detail::header_text(plan.heads);
  file->write(header.data(), header.size());
  for (const NamedTensor* tensor : plan.tensors) {
    for (const at::Tensor& part : tensor->parts) {
      detail::for_each_piece(part, detail::PieceUse::kRead, [&](void* data, size_t bytes) {
        file->write(data, bytes);
      });
    }
  }
  file->sync();
}

}  // namespace

void write_tensors(FileOps& ops,
                   const std::string& folder,
                   std::span<const NamedTensor> tensors,
                   size_t file_bytes) {
  const std::vector<TensorFile> files = plan_files(tensors, file_bytes);
  Json file_of_name = Json::object();
  size_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string name = file_name(i, files.size());
    write_file(ops, folder + "/" + name, files[i]);
    bytes += files[i].bytes;
    for (const StoredTensor& head : files[i].heads) {
      file_of_name[head.name] = name;
    }
  }
  const Json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", file_of_name}};
  const std::unique_ptr<OutputFile> file = ops.create(folder + "/" + detail::kIndexName);
  const std::string text = index.dump(2) + "\n";
  file->write(text.data(), text.size());
  file->sync();
}

}  // namespace swapline
