// Reading texts, and cutting them into windows.
#include "trainer/text_data.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <ATen/ops/empty.h>

#include <nlohmann/json.hpp>

namespace swapline::trainer {
namespace {

namespace fs = std::filesystem;

constexpr std::array kTextSuffixes = {".txt",
                                      ".md",
                                      ".rst",
                                      ".py",
                                      ".c",
                                      ".h",
                                      ".cc",
                                      ".cpp",
                                      ".hpp",
                                      ".js",
                                      ".ts",
                                      ".java",
                                      ".go",
                                      ".rs",
                                      ".sh",
                                      ".tex",
                                      ".csv",
                                      ".json",
                                      ".jsonl"};

// A place that texts are read from, and the option that named it.
struct Source {
  fs::path path;
  std::string_view option;

  [[noreturn]] void refuse(const std::string& reason) const {
    throw std::runtime_error(
        std::string(option) + ": " + path.string() + ": " + reason +
        "; allowed is a folder of texts, a text file, or JSON-lines with \"text\"");
  }
};

bool is_json_lines(const fs::path& path) {
  return path.extension() == ".jsonl" || path.extension() == ".json";
}

std::string read_file(const Source& source) {
  std::ifstream file(source.path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  // An empty file sets the fail bit of `text`, not of the file.
  if (!file.is_open() || file.bad()) {
    source.refuse("cannot be read");
  }
  return std::move(text).str();
}

void append_text(std::string& texts, std::string_view text) {
  if (!text.empty()) {
    texts.append(text).push_back('\0');
  }
}

void append_json_lines(std::string& texts, const Source& source) {
  std::istringstream lines(read_file(source));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto text = record.is_object() ? record.find("text") : record.end();
    if (text == record.end() || !text->is_string()) {
      source.refuse("line " + std::to_string(number) + " is no JSON object with a \"text\"");
    }
    append_text(texts, text->get<std::string>());
  }
}

void append_file(std::string& texts, const Source& source) {
  if (is_json_lines(source.path)) {
    append_json_lines(texts, source);
  } else {
    append_text(texts, read_file(source));
  }
}

std::vector<fs::path> text_files(const Source& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path, error)) {
    const bool is_text =
        std::find(kTextSuffixes.begin(), kTextSuffixes.end(), entry.path().extension()) !=
        kTextSuffixes.end();
    if (is_text && entry.is_regular_file()) {
      files.push_back(entry.path());
    }
  }
  if (error) {
    folder.refuse("cannot be read");
  }
  // Directories list in any order; the data must not.
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string read_texts(const std::string& path, std::string_view option) {
  const Source source{path, option};
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    source.refuse("does not exist");
  }
  std::string texts;
  if (fs::is_directory(status)) {
    for (const fs::path& file : text_files(source)) {
      append_file(texts, {file, option});
    }
  } else {
    append_file(texts, source);
  }
  if (texts.empty()) {
    source.refuse("holds no text");
  }
  return texts;
}

TextData::TextData(std::string text, int64_t seq_len, std::string_view option)
    : text_(std::move(text)), seq_len_(seq_len) {
  if (size() < seq_len + 1) {
    throw std::runtime_error(std::string(option) + ": found " + std::to_string(size()) +
                             " bytes of text, needed are at least --training.seq-len + 1 = " +
                             std::to_string(seq_len + 1));
  }
}

Batch TextData::next_batch(int64_t num_sequences) {
  const auto options = at::TensorOptions().dtype(at::kLong);
  Batch batch{at::empty({num_sequences, seq_len_}, options),
              at::empty({num_sequences, seq_len_}, options)};
  auto* tokens = batch.tokens.mutable_data_ptr<int64_t>();
  auto* targets = batch.targets.mutable_data_ptr<int64_t>();
  for (int64_t sequence = 0; sequence < num_sequences; ++sequence) {
    if (position_ + seq_len_ + 1 > size()) {
      position_ = 0;
      ++num_restarts_;
    }
    for (int64_t i = 0; i < seq_len_; ++i) {
      *tokens++ = static_cast<unsigned char>(text_[static_cast<size_t>(position_ + i)]);
      *targets++ = static_cast<unsigned char>(text_[static_cast<size_t>(position_ + i + 1)]);
    }
    position_ += seq_len_;
  }
  return batch;
}

void TextData::seek(int64_t position) {
  if (position < 0 || position > size()) {
    throw std::runtime_error("data position " + std::to_string(position) + " lies outside the " +
                             std::to_string(size()) + " bytes of text");
  }
  position_ = position;
}

}  // namespace swapline::trainer
