// Files that are not what they should be: an error that names file and tensor, and nothing changed.
#include "tests/checkpoint/tensors_on_disk.h"
#include "tests/support/errors.h"
#include "tests/trainer/temporary_folder.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace swapline {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::json;
using testing::has_same_bits;
using ::testing::HasSubstr;
using testing::message_of;
using testing::random_bits;
using testing::write_to;
using trainer::TemporaryFolder;

constexpr const char* kFile = "model-00001-of-00001.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::string content_of(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

// A file with this header and so many bytes behind it.
std::string file_with(const std::string& header, size_t data_bytes) {
  std::string content(8, '\0');
  content[0] = static_cast<char>(header.size() & 0xFF);
  content[1] = static_cast<char>(header.size() >> 8);
  return content + header + std::string(data_bytes, 'x');
}

Json entry(const std::string& dtype, const Json& shape, const Json& offsets) {
  return {{"dtype", dtype}, {"shape", shape}, {"data_offsets", offsets}};
}

std::string message_for(const std::string& content) {
  const TemporaryFolder folder;
  folder.write("one.safetensors", content);
  const std::string message = message_of([&] { TensorReader(folder.path("one.safetensors")); });
  EXPECT_THAT(message, HasSubstr(folder.path("one.safetensors"))) << "the file is not named";
  return message;
}

TEST(TensorReaderErrors, TruncationAnywhereIsFoundAtOpening) {
  const TemporaryFolder folder;
  write_to(folder.path(),
           {{"a", {random_bits(at::kFloat, {3})}}, {"b", {random_bits(at::kHalf, {5})}}});
  const std::string whole = content_of(folder.path(kFile));
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    folder.write(kFile, whole.substr(0, bytes));
    EXPECT_THAT(message_of([&] { TensorReader(folder.path()); }), HasSubstr(folder.path(kFile)))
        << bytes << " of " << whole.size();
  }
  folder.write(kFile, whole);
  EXPECT_NO_THROW(TensorReader(folder.path()));
}

TEST(TensorReaderErrors, BytesBehindTheEndAreFound) {
  const TemporaryFolder folder;
  write_to(folder.path(), {{"a", {random_bits(at::kFloat, {3})}}});
  folder.write(kFile, content_of(folder.path(kFile)) + "x");
  EXPECT_THAT(message_of([&] { TensorReader(folder.path()); }), HasSubstr(kFile));
}

TEST(TensorReaderErrors, ForeignHeadersAreRefused) {
  EXPECT_THAT(message_for(std::string(100, '\xFF')), HasSubstr("no safetensors file"));
  EXPECT_THAT(message_for("PK\x03\x04" + std::string(1000, 'z')), HasSubstr("no safetensors file"));
  EXPECT_THAT(message_for(file_with("[1, 2]", 0)), HasSubstr("no JSON object"));
  EXPECT_THAT(message_for(file_with("{\"a\":", 0)), HasSubstr("no JSON object"));
  EXPECT_THAT(message_for(file_with(R"({"key": 3})", 0)), HasSubstr("key has no dtype"));
  EXPECT_THAT(message_for(file_with(R"({"__metadata__": 3})", 0)), HasSubstr("__metadata__"));
  const auto with = [](const Json& value, size_t data_bytes) {
    return file_with(Json{{"key", value}}.dump(), data_bytes);
  };
  EXPECT_THAT(message_for(with(entry("F4", {2}, {0, 1}), 1)), HasSubstr("key: found dtype F4"));
  EXPECT_THAT(message_for(with(entry("F32", {2}, {0, 4}), 4)), HasSubstr("key has 4 bytes"));
  EXPECT_THAT(message_for(with(entry("F32", {-1}, {0, 4}), 4)), HasSubstr("key: shape"));
  EXPECT_THAT(message_for(with(entry("F32", {1.5}, {0, 6}), 6)), HasSubstr("key: shape"));
  EXPECT_THAT(message_for(with(entry("F32", {1}, {4, 0}), 4)), HasSubstr("key: data_offsets"));
  EXPECT_THAT(message_for(with(entry("F32", {1}, {0}), 4)), HasSubstr("key: data_offsets"));
  EXPECT_THAT(message_for(with(entry("F32", {2}, {0, 8}), 4)),
              HasSubstr("key ends at byte 8 of 4"));
  const int64_t huge = int64_t{1} << 62;
  EXPECT_THAT(message_for(with(entry("F32", {huge, 4}, {0, 0}), 0)), HasSubstr("key has 0 bytes"));
  const std::string one = "\"key\": " + entry("U8", {1}, {0, 1}).dump();
  EXPECT_THAT(message_for(file_with("{" + one + ", " + one + "}", 1)),
              HasSubstr("key is there twice"));
}

TEST(TensorReaderErrors, OverlapsAndHolesAreRefused) {
  const auto both = [](const Json& first, const Json& second, size_t data_bytes) {
    return file_with(Json{{"a", first}, {"b", second}}.dump(), data_bytes);
  };
  EXPECT_THAT(message_for(both(entry("U8", {2}, {0, 2}), entry("U8", {2}, {1, 3}), 3)),
              HasSubstr("b begins at byte 1, the one before ends at 2"));
  EXPECT_THAT(message_for(both(entry("U8", {2}, {0, 2}), entry("U8", {2}, {3, 5}), 5)),
              HasSubstr("b begins at byte 3, the one before ends at 2"));
  EXPECT_THAT(message_for(both(entry("U8", {2}, {1, 3}), entry("U8", {2}, {3, 5}), 5)),
              HasSubstr("a begins at byte 1"));
  EXPECT_THAT(message_for(both(entry("U8", {2}, {0, 2}), entry("U8", {2}, {2, 4}), 5)),
              HasSubstr("have 4 bytes, the file 5"));
}

TEST(TensorReaderErrors, RenamedAndMissingFilesAreNamed) {
  const TemporaryFolder folder;
  const at::Tensor small = at::zeros({100});
  write_to(folder.path(), {{"a", {small}}, {"b", {small}}}, 400);
  const std::string second = folder.path("model-00002-of-00002.safetensors");
  fs::rename(second, folder.path("other.safetensors"));
  std::string message = message_of([&] { TensorReader(folder.path()); });
  EXPECT_THAT(message, HasSubstr(second + ": is missing"));
  EXPECT_THAT(message, HasSubstr("has b in it"));
  fs::copy_file(folder.path("model-00001-of-00002.safetensors"), second);
  message = message_of([&] { TensorReader(folder.path()); });
  EXPECT_THAT(message, HasSubstr(second + ": b is missing"));
  EXPECT_THAT(message_of([&] { TensorReader(folder.path("nowhere")); }),
              HasSubstr(folder.path("nowhere") + ": there is no such file"));
}

TEST(TensorReaderErrors, BadIndexesAreRefused) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& index) {
    folder.write(kIndex, index);
    return message_of([&] { TensorReader(folder.path()); });
  };
  EXPECT_THAT(message("{\"weight_"), HasSubstr("no JSON object with a weight_map"));
  EXPECT_THAT(message("{}"), HasSubstr("no JSON object with a weight_map"));
  EXPECT_THAT(message(R"({"weight_map": {"key": 3}})"), HasSubstr("key: found 3"));
  EXPECT_THAT(message(R"({"weight_map": {"key": "../x.safetensors"}})"), HasSubstr("key: found"));
  EXPECT_THAT(message(R"({"weight_map": {"key": "x.safetensors"}})"), HasSubstr("is missing"));
  fs::remove(folder.path(kIndex));
  EXPECT_THAT(message_of([&] { TensorReader(folder.path()); }), HasSubstr("found neither"));
}

TEST(TensorReaderErrors, OneTensorThatDoesNotFitLeavesAllUntouched) {
  const TemporaryFolder folder;
  write_to(folder.path(),
           {{"a", {random_bits(at::kFloat, {6})}}, {"b", {random_bits(at::kFloat, {2, 3})}}});
  const TensorReader reader(folder.path());
  const at::Tensor first = at::full({6}, 7.0);
  const auto message = [&](const TensorTarget& bad) {
    const std::string text =
        message_of([&] { reader.read(std::vector<TensorTarget>{{"a", first}, bad}); });
    EXPECT_TRUE(has_same_bits(first, at::full({6}, 7.0))) << text;
    EXPECT_THAT(text, HasSubstr(folder.path()));
    return text;
  };
  EXPECT_THAT(message({"c", at::zeros({6})}), HasSubstr("c is missing"));
  EXPECT_THAT(message({"b", at::zeros({3, 2})}),
              HasSubstr("b: found shape [2, 3], allowed is [3, 2]"));
  EXPECT_THAT(message({"b", at::zeros({6})}), HasSubstr("b: found shape"));
  EXPECT_THAT(message({"b", at::zeros({2, 3}, at::kHalf)}),
              HasSubstr("b: found dtype F32, allowed is F16"));
  EXPECT_THAT(message({"b", at::zeros({1, 3})}), HasSubstr("b: found shape"));
  EXPECT_THAT(message({"b", at::zeros({1, 3}), 2, /*is_part=*/true}), HasSubstr("from row 2"));
}

std::string shard(const std::string& name, int64_t first_row, int64_t num_rows, char fill) {
  const Json info = {{name, {{"saved_offsets", {first_row, 0}}}}};
  const Json header = {{"__metadata__", {{"DCP_SHARDING_INFO", info.dump()}}},
                       {name, entry("U8", {num_rows, 2}, {0, 2 * num_rows})}};
  std::string content = file_with(header.dump(), static_cast<size_t>(2 * num_rows));
  std::fill(content.end() - 2 * num_rows, content.end(), fill);
  return content;
}

TEST(TensorReader, ShardsAlongTheFirstDimensionAreOneTensor) {
  const TemporaryFolder folder;
  folder.write("shard-00002-model-00001-of-00001.safetensors", shard("key", 0, 3, 1));
  folder.write("shard-00001-model-00001-of-00001.safetensors", shard("key", 3, 1, 2));
  folder.write("shard-00003-model-00001-of-00001.safetensors", shard("key", 4, 0, 3));
  const TensorReader reader(folder.path());
  EXPECT_EQ(reader.entries().at("key").sizes, (std::vector<int64_t>{4, 2}));
  EXPECT_TRUE(
      has_same_bits(testing::read_from(reader, "key"),
                    at::cat({at::full({3, 2}, 1, at::kByte), at::full({1, 2}, 2, at::kByte)})));
  const at::Tensor across = at::zeros({2, 2}, at::kByte);
  reader.read(std::vector<TensorTarget>{{"key", across, 2, /*is_part=*/true}});
  EXPECT_TRUE(has_same_bits(
      across, at::cat({at::full({1, 2}, 1, at::kByte), at::full({1, 2}, 2, at::kByte)})));
}

TEST(TensorReaderErrors, AMissingShardIsFound) {
  const TemporaryFolder folder;
  folder.write("1.safetensors", shard("key", 0, 3, 1));
  folder.write("3.safetensors", shard("key", 5, 1, 2));
  EXPECT_THAT(
      message_of([&] { TensorReader(folder.path()); }),
      HasSubstr("3.safetensors: key begins at row 5, and the files before it end at row 3"));
  folder.write("2.safetensors", shard("key", 2, 3, 1));
  EXPECT_THAT(message_of([&] { TensorReader(folder.path()); }), HasSubstr("key begins at row 2"));
}

}  // namespace
}  // namespace swapline
