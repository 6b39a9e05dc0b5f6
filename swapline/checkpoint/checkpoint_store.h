// A folder of checkpoints: step-10, step-20, ... Each is whole, or not there.
#pragma once

#include "swapline/checkpoint/file_ops.h"
#include "swapline/checkpoint/scalars.h"
#include "swapline/checkpoint/tensor_writer.h"
#include "swapline/export.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace swapline {

struct CheckpointContent {
  std::vector<NamedTensor> tensors;
  std::map<std::string, Scalars> scalars;  // by the name of their file, "train_state.json"
};

struct CheckpointStoreOptions {
  int64_t keep_latest_k = 0;               // older ones are deleted; 0: all stay
  size_t file_bytes = size_t{4} << 30;     // of tensors in one file, see write_tensors()
  std::shared_ptr<FileOps> ops = nullptr;  // nullptr: the system's
};

// A checkpoint is written under another name, synced, and then given its own: one that is
// interrupted, at whatever point, leaves those before it as they were, and a leftover that the next
// save() removes. A folder may be written to by one store at a time.
class SWAPLINE_API CheckpointStore {
 public:
  explicit CheckpointStore(std::string folder, CheckpointStoreOptions options = {});

  const std::string& folder() const { return folder_; }
  // Those that are there, the lowest first.
  std::vector<int64_t> steps() const;
  std::string path(int64_t step) const;

  // Writes all, then deletes what is over keep_latest_k: never the one just written, of the others
  // those of the lowest steps. One of the same step is replaced in one go. Blocks until it is on
  // the disk. Throws c10::Error; when it throws before the new checkpoint has its name, all others
  // are untouched, and what was written is removed.
  void save(int64_t step, const CheckpointContent& content) const;

 private:
  void remove_leftovers() const;
  void write(const std::string& folder, const CheckpointContent& content) const;
  void remove_old_ones(int64_t newest) const;

  std::string folder_;
  CheckpointStoreOptions options_;
};

}  // namespace swapline
