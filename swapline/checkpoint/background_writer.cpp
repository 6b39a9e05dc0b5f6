// The thread and what it holds.
#include "swapline/checkpoint/background_writer.h"

namespace swapline {

BackgroundWriter::~BackgroundWriter() {
  if (writing_.valid()) {
    writing_.wait();
  }
}

void BackgroundWriter::start(int64_t step, CheckpointContent content) {
  wait();
  content_ = std::move(content);
  writing_ = std::async(std::launch::async, [this, step] { store_.save(step, content_); });
}

void BackgroundWriter::wait() {
  if (!writing_.valid()) {
    return;
  }
  writing_.wait();
  content_ = {};
  writing_.get();
}

}  // namespace swapline
