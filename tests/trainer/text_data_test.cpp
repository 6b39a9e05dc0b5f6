// Reading texts, refusing what is none, and the order of windows.
#include "trainer/text_data.h"

#include "tests/trainer/temporary_folder.h"

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

std::string error_of(const std::string& path) {
  try {
    read_texts(path);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(ReadTexts, FolderIsReadByNameWithoutOtherFilesAndSubfolders) {
  const TemporaryFolder folder;
  folder.write("b.py", "two");
  folder.write("a.txt", "one");
  folder.write("image.png", "no text");
  std::filesystem::create_directory(folder.path("sub.py"));
  EXPECT_EQ(read_texts(folder.path()), std::string("one\0two\0", 8));
}

TEST(ReadTexts, FileOfAnySuffixIsText) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_texts(folder.write("poem.odd", "roses")), std::string("roses\0", 6));
}

TEST(ReadTexts, JsonLinesGiveTheirTexts) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("data.jsonl", "{\"text\": \"one\", \"id\": 1}\n\n{\"text\": \"tw\\u00f6\"}\n");
  EXPECT_EQ(read_texts(path), std::string("one\0tw\xc3\xb6\0", 9));
}

TEST(ReadTexts, BrokenJsonLineIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.write("data.jsonl", "{\"text\": \"one\"}\n{\"text\": 2}\n");
  EXPECT_NE(error_of(path).find("data.jsonl: line 2"), std::string::npos) << error_of(path);
}

TEST(ReadTexts, MissingPathIsRefused) {
  EXPECT_NE(error_of("/nowhere/at/all").find("--data.path: /nowhere/at/all: does not exist"),
            std::string::npos);
}

TEST(ReadTexts, EmptyFileAndEmptyFolderAreRefused) {
  const TemporaryFolder folder;
  EXPECT_NE(error_of(folder.path()).find("holds no text"), std::string::npos);
  EXPECT_NE(error_of(folder.write("empty.txt", "")).find("holds no text"), std::string::npos);
}

TEST(TextData, WindowsFollowEachOtherAndTargetsAreOneTokenAhead) {
  TextData data("abcdefghij", 3);
  const Batch batch = data.next_batch(2);
  ASSERT_EQ(batch.tokens.sizes(), (at::IntArrayRef{2, 3}));
  const auto* tokens = batch.tokens.const_data_ptr<int64_t>();
  const auto* targets = batch.targets.const_data_ptr<int64_t>();
  EXPECT_EQ(std::vector<int64_t>(tokens, tokens + 6),
            (std::vector<int64_t>{'a', 'b', 'c', 'd', 'e', 'f'}));
  EXPECT_EQ(std::vector<int64_t>(targets, targets + 6),
            (std::vector<int64_t>{'b', 'c', 'd', 'e', 'f', 'g'}));
  EXPECT_EQ(data.position(), 6);
}

TEST(TextData, StartsOverAtTheEnd) {
  TextData data("abcdefgh", 3);
  data.next_batch(2);
  EXPECT_EQ(data.num_restarts(), 0);
  const Batch batch = data.next_batch(1);
  EXPECT_EQ(batch.tokens.const_data_ptr<int64_t>()[0], 'a');
  EXPECT_EQ(data.num_restarts(), 1);
}

TEST(TextData, SeekGoesOnFromAPosition) {
  TextData first("abcdefghijklmnop", 4);
  first.next_batch(1);
  TextData second("abcdefghijklmnop", 4);
  second.seek(first.position());
  EXPECT_TRUE(second.next_batch(1).tokens.equal(first.next_batch(1).tokens));
  EXPECT_THROW(second.seek(17), std::runtime_error);
}

TEST(TextData, BytesAboveAsciiArePositiveTokens) {
  TextData data("\xff\xfe\xfd", 2);
  EXPECT_EQ(data.next_batch(1).tokens.const_data_ptr<int64_t>()[0], 255);
}

TEST(TextData, TextShorterThanAWindowIsRefused) {
  EXPECT_NO_THROW(TextData("abcd", 3));
  EXPECT_THROW(TextData("abc", 3), std::runtime_error);
}

}  // namespace
}  // namespace swapline::trainer
