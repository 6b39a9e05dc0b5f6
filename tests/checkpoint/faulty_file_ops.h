// File operations that fail, wait or count, in front of the system's.
#pragma once

#include "swapline/checkpoint/file_ops.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace swapline::testing {

// Calls `before` with the name of each operation and its path; an exception from it is the
// operation's.
class FaultyFileOps : public FileOps {
 public:
  using Before = std::function<void(const std::string& operation, const std::string& path)>;
  explicit FaultyFileOps(Before before) : before_(std::move(before)) {}

  std::unique_ptr<OutputFile> create(const std::string& path) override {
    before_("create", path);
    return std::make_unique<File>(before_, path, system_->create(path));
  }
  void make_folder(const std::string& path) override {
    before_("make_folder", path);
    system_->make_folder(path);
  }
  void sync_folder(const std::string& path) override {
    before_("sync_folder", path);
    system_->sync_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    before_("rename", from);
    system_->rename(from, to);
  }
  void exchange(const std::string& one, const std::string& other) override {
    before_("exchange", one);
    system_->exchange(one, other);
  }
  void remove(const std::string& path) override {
    before_("remove", path);
    system_->remove(path);
  }

 private:
  class File : public OutputFile {
   public:
    File(const Before& before, std::string path, std::unique_ptr<OutputFile> file)
        : before_(before), path_(std::move(path)), file_(std::move(file)) {}
    void write(const void* data, size_t bytes) override {
      before_("write", path_);
      file_->write(data, bytes);
    }
    void sync() override {
      before_("sync", path_);
      file_->sync();
    }

   private:
    const Before& before_;
    std::string path_;
    std::unique_ptr<OutputFile> file_;
  };

  Before before_;
  std::shared_ptr<FileOps> system_ = system_file_ops();
};

}  // namespace swapline::testing
