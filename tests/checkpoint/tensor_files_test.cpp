// What is written comes back, whatever its dtype, shape and strides; and how files are laid out.
#include "tests/checkpoint/faulty_file_ops.h"
#include "tests/checkpoint/tensors_on_disk.h"
#include "tests/support/errors.h"
#include "tests/trainer/temporary_folder.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace swapline {
namespace {

using testing::has_same_bits;
using testing::message_of;
using testing::random_bits;
using testing::read_from;
using testing::write_to;
using trainer::TemporaryFolder;

constexpr at::ScalarType kDtypes[] = {at::kDouble,
                                      at::kFloat,
                                      at::kHalf,
                                      at::kBFloat16,
                                      at::kLong,
                                      at::kInt,
                                      at::kShort,
                                      at::kChar,
                                      at::kByte,
                                      at::kBool};

std::string content_of(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

TEST(TensorFiles, EveryDtypeAndShapeComesBack) {
  const TemporaryFolder folder;
  const std::vector<std::vector<int64_t>> shapes = {
      {}, {0}, {1}, {7}, {3, 5}, {2, 0, 4}, {2, 3, 5}};
  std::vector<NamedTensor> tensors;
  for (const at::ScalarType dtype : kDtypes) {
    for (const auto& shape : shapes) {
      const std::string name = std::to_string(tensors.size());
      tensors.push_back({name, {random_bits(dtype, shape, tensors.size())}});
    }
  }
  write_to(folder.path(), tensors);
  const TensorReader reader(folder.path());
  EXPECT_EQ(reader.entries().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    EXPECT_TRUE(has_same_bits(read_from(reader, tensor.name), tensor.parts[0])) << tensor.name;
  }
}

// Large ones too, which go through the buffer in several pieces.
TEST(TensorFiles, OtherStridesAreWrittenAsContiguous) {
  const TemporaryFolder folder;
  const at::Tensor matrix = random_bits(at::kFloat, {700, 300});
  const at::Tensor wide = random_bits(at::kShort, {2, 100'000, 2});
  const std::vector<NamedTensor> tensors = {{"transposed", {matrix.t()}},
                                            {"columns", {matrix.narrow(1, 3, 5)}},
                                            {"expanded", {matrix.select(1, 0).expand({40, 700})}},
                                            {"stepped", {matrix.slice(0, 0, 700, 3)}},
                                            {"wide", {wide.permute({2, 0, 1})}},
                                            {"scalar", {matrix.select(0, 1).select(0, 2)}}};
  write_to(folder.path(), tensors);
  const TensorReader reader(folder.path());
  for (const NamedTensor& tensor : tensors) {
    EXPECT_TRUE(has_same_bits(read_from(reader, tensor.name), tensor.parts[0])) << tensor.name;
  }
}

TEST(TensorFiles, ReadsIntoOtherStrides) {
  const TemporaryFolder folder;
  const at::Tensor matrix = random_bits(at::kFloat, {300, 500});
  write_to(folder.path(), {{"matrix", {matrix}}});
  const at::Tensor transposed = at::zeros({500, 300}).t();
  TensorReader(folder.path()).read(std::vector<TensorTarget>{{"matrix", transposed}});
  EXPECT_TRUE(has_same_bits(transposed, matrix));
}

TEST(TensorFiles, PartsAreJoinedAndReadByRows) {
  const TemporaryFolder folder;
  const at::Tensor first = random_bits(at::kFloat, {3, 4}, 1);
  const at::Tensor second = random_bits(at::kFloat, {4, 2}, 2).t();
  const at::Tensor third = random_bits(at::kFloat, {5, 4}, 3);
  write_to(folder.path(), {{"joined", {first, second, third}}});
  const TensorReader reader(folder.path());
  EXPECT_EQ(reader.entries().at("joined").sizes, (std::vector<int64_t>{10, 4}));
  EXPECT_TRUE(has_same_bits(read_from(reader, "joined"), at::cat({first, second, third})));
  const at::Tensor some = at::zeros({4, 4});
  reader.read(std::vector<TensorTarget>{{"joined", some, 2, /*is_part=*/true}});
  EXPECT_TRUE(has_same_bits(some, at::cat({first, second, third}).narrow(0, 2, 4)));
}

TEST(TensorFiles, NoFileExceedsTheLimitButASingleTensor) {
  const TemporaryFolder folder;
  const at::Tensor small = at::zeros({100});  // 400 bytes
  write_to(
      folder.path(),
      {{"a", {small}}, {"b", {small}}, {"c", {small}}, {"d", {at::zeros({300})}}, {"e", {small}}},
      1000);
  const TensorReader reader(folder.path());
  const auto index = nlohmann::json::parse(content_of(folder.path("model.safetensors.index.json")));
  EXPECT_EQ(index["weight_map"],
            (nlohmann::json{{"a", "model-00001-of-00004.safetensors"},
                            {"b", "model-00001-of-00004.safetensors"},
                            {"c", "model-00002-of-00004.safetensors"},
                            {"d", "model-00003-of-00004.safetensors"},
                            {"e", "model-00004-of-00004.safetensors"}}));
  EXPECT_EQ(index["metadata"]["total_size"], 4 * 400 + 1200);
  EXPECT_EQ(reader.entries().size(), 5U);
}

TEST(TensorFiles, HeaderIsAlignedAndNamesTheFormat) {
  const TemporaryFolder folder;
  for (int length = 1; length < 9; ++length) {
    write_to(folder.path(), {{std::string(static_cast<size_t>(length), 'x'), {at::zeros({2})}}});
    const std::string content = content_of(folder.path("model-00001-of-00001.safetensors"));
    const size_t header_bytes = static_cast<unsigned char>(content[0]) +
                                size_t{256} * static_cast<unsigned char>(content[1]);
    EXPECT_EQ(header_bytes % 8, 0U);
    EXPECT_EQ(content.size(), 8 + header_bytes + 8);
    const auto header = nlohmann::json::parse(content.substr(8, header_bytes));
    EXPECT_EQ(header["__metadata__"]["format"], "pt");
    EXPECT_EQ(header["__metadata__"]["DCP_VERSION"], "1.0");
    EXPECT_TRUE(header["__metadata__"]["DCP_SHARDING_INFO"].is_string());
  }
}

TEST(TensorFiles, NothingToWriteIsACheckpointToo) {
  const TemporaryFolder folder;
  write_to(folder.path(), {});
  EXPECT_TRUE(TensorReader(folder.path()).entries().empty());
}

// The one way to a second copy would be one write of a whole tensor with other strides.
TEST(TensorFiles, AContiguousTensorIsWrittenFromItsOwnMemory) {
  class Watched : public OutputFile {
   public:
    explicit Watched(std::vector<std::pair<const void*, size_t>>& writes) : writes_(writes) {}
    void write(const void* data, size_t bytes) override { writes_.emplace_back(data, bytes); }
    void sync() override {}

   private:
    std::vector<std::pair<const void*, size_t>>& writes_;
  };
  class WatchedOps : public testing::FaultyFileOps {
   public:
    WatchedOps() : FaultyFileOps([](const auto&, const auto&) {}) {}
    std::unique_ptr<OutputFile> create(const std::string&) override {
      return std::make_unique<Watched>(writes);
    }
    std::vector<std::pair<const void*, size_t>> writes;
  };
  WatchedOps ops;
  const at::Tensor contiguous = at::zeros({1000, 1000});
  const at::Tensor transposed = at::zeros({1000, 1000}).t();
  write_tensors(ops, "unused", std::vector<NamedTensor>{{"a", {contiguous}}, {"b", {transposed}}});
  EXPECT_EQ(ops.writes[1],
            (std::pair<const void*, size_t>{contiguous.const_data_ptr(), 4'000'000}));
  for (size_t i = 2; i + 1 < ops.writes.size(); ++i) {
    EXPECT_LE(ops.writes[i].second, size_t{128} << 10);
  }
}

TEST(TensorFilesErrors, WhatCannotBeStoredIsRefusedBeforeAnythingIsWritten) {
  const TemporaryFolder folder;
  const auto message = [&](const std::vector<NamedTensor>& tensors) {
    return message_of([&] { write_to(folder.path(), tensors); });
  };
  const at::Tensor good = at::zeros({2, 3});
  EXPECT_THAT(message({{"a", {good}}, {"key", {at::zeros({2}, at::kComplexFloat)}}}),
              ::testing::HasSubstr("key: found dtype ComplexFloat, allowed are F64, F32"));
  EXPECT_THAT(message({{"a", {good}}, {"key", {at::empty({2}, at::kMeta)}}}),
              ::testing::HasSubstr("key: found a tensor on meta"));
  EXPECT_THAT(message({{"key", {at::Tensor()}}}), ::testing::HasSubstr("undefined"));
  EXPECT_THAT(message({{"key", {}}}), ::testing::HasSubstr("no parts"));
  EXPECT_THAT(message({{"key", {good, at::zeros({2, 4})}}}), ::testing::HasSubstr("parts differ"));
  EXPECT_THAT(message({{"key", {good, good.to(at::kHalf)}}}), ::testing::HasSubstr("parts differ"));
  EXPECT_THAT(message({{"key", {good}}, {"key", {good}}}),
              ::testing::HasSubstr("key is there twice"));
  EXPECT_THAT(message({{"__metadata__", {good}}}), ::testing::HasSubstr("as the name"));
  EXPECT_THAT(message({{"", {good}}}), ::testing::HasSubstr("as the name"));
  EXPECT_THAT(message({{"a\xFF", {good}}}), ::testing::HasSubstr("allowed is UTF-8"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace swapline
