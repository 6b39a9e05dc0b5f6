// What a save asks of the file system, as an interface: tests make it fail, slow or stop.
#pragma once

#include "swapline/export.h"

#include <cstddef>
#include <memory>
#include <string>

namespace swapline {

// A new file, written from its start to its end.
class SWAPLINE_API OutputFile {
 public:
  // Closes the file; what was not synced may be lost.
  virtual ~OutputFile() = default;
  virtual void write(const void* data, size_t bytes) = 0;
  // Returns when the bytes are on the disk.
  virtual void sync() = 0;
};

// All members throw c10::Error that names the file and what the system said.
class SWAPLINE_API FileOps {
 public:
  virtual ~FileOps() = default;

  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  // With its parents; nothing when it is there.
  virtual void make_folder(const std::string& path) = 0;
  // Returns when the names in the folder are on the disk.
  virtual void sync_folder(const std::string& path) = 0;
  // `to` is free, or an empty folder. Atomic.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  // Each gets the other's name. Atomic; an error where the file system cannot do that.
  virtual void exchange(const std::string& one, const std::string& other) = 0;
  // A file, or a folder with all in it; nothing when it is not there.
  virtual void remove(const std::string& path) = 0;
};

// The system's own. Thread-safe.
SWAPLINE_API std::shared_ptr<FileOps> system_file_ops();

}  // namespace swapline
