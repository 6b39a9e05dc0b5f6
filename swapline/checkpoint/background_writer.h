// Writes a checkpoint while training goes on.
#pragma once

#include "swapline/checkpoint/checkpoint_store.h"
#include "swapline/export.h"

#include <cstdint>
#include <future>
#include <utility>

namespace swapline {

// One checkpoint at a time, in a thread of its own that uses memory and files only, no device.
// Not thread-safe itself.
class SWAPLINE_API BackgroundWriter {
 public:
  explicit BackgroundWriter(CheckpointStore store) : store_(std::move(store)) {}
  // Waits. An error that nobody asked for is lost: call wait() before.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  const CheckpointStore& store() const { return store_; }

  // wait(), then begins to write. The tensors must not be written to before wait() returns; their
  // memory is held until then. Throws what wait() throws; nothing is begun then.
  void start(int64_t step, CheckpointContent content);
  // Blocks the calling thread until nothing is being written. Throws the error of what was, once.
  void wait();
  bool is_writing() const { return writing_.valid(); }  // nobody has waited for it yet

 private:
  CheckpointStore store_;
  CheckpointContent content_;  // freed by the thread that waits
  std::future<void> writing_;
};

}  // namespace swapline
