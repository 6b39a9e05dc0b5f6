// Real text as byte-level tokens, cut into windows in a fixed order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// The texts at `path`, one after the other, each ended by a 0 byte. A folder: its own text files
// (.txt, .md, .rst, .py, .c, .h, .cpp, .jsonl, ...) by name, subfolders not. A file: its text, or
// when it ends in .jsonl or .json, the field "text" of each line.
// Throws: std::runtime_error naming `option`, what was found, and the file (and line).
std::string read_texts(const std::string& path, std::string_view option = "--data.path");

struct Batch {
  at::Tensor tokens;   // int64 [B, T], on the host
  at::Tensor targets;  // the same, one token further
};

// Hands out windows of seq_len + 1 bytes, one behind the other, and starts over at the end.
class TextData {
 public:
  // Throws: std::runtime_error naming `option` when `text` is shorter than one window.
  TextData(std::string text, int64_t seq_len, std::string_view option = "--data.path");

  Batch next_batch(int64_t num_sequences);

  // Where the next window starts, in bytes: all that is needed to go on later.
  int64_t position() const { return position_; }
  void seek(int64_t position);
  int64_t size() const { return static_cast<int64_t>(text_.size()); }
  int64_t num_restarts() const { return num_restarts_; }

 private:
  std::string text_;
  int64_t seq_len_;
  int64_t position_ = 0;
  int64_t num_restarts_ = 0;
};

}  // namespace swapline::trainer
