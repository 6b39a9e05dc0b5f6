// File operations by the system's calls.
#include "swapline/checkpoint/file_ops.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <unistd.h>

namespace swapline {
namespace {

// Linux writes at most 2 GiB less a page at once.
constexpr size_t kMostBytesAtOnce = size_t{1} << 30;

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  TORCH_CHECK(false, path, ": ", what, " failed: ", std::strerror(error));
}

class SystemFile : public OutputFile {
 public:
  explicit SystemFile(std::string path) : path_(std::move(path)) {
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file_ < 0) {
      fail(path_, "creating it", errno);
    }
  }
  ~SystemFile() override { ::close(file_); }
  SystemFile(const SystemFile&) = delete;
  SystemFile& operator=(const SystemFile&) = delete;

  void write(const void* data, size_t bytes) override {
    const auto* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(file_, next, std::min(bytes, kMostBytesAtOnce));
      if (written < 0 && errno != EINTR) {
        fail(path_, "writing", errno);
      }
      if (written > 0) {
        next += written;
        bytes -= static_cast<size_t>(written);
      }
    }
  }

  void sync() override {
    if (::fsync(file_) != 0) {
      fail(path_, "syncing", errno);
    }
  }

 private:
  std::string path_;
  int file_ = -1;
};

class SystemFileOps : public FileOps {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<SystemFile>(path);
  }

  void make_folder(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) {
      fail(path, "making the folder", error.value());
    }
  }

  void sync_folder(const std::string& path) override {
    const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) {
      fail(path, "opening the folder", errno);
    }
    const int error = ::fsync(folder) == 0 ? 0 : errno;
    ::close(folder);
    if (error != 0) {
      fail(path, "syncing the folder", error);
    }
  }

  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) {
      fail(from, ("renaming it to " + to).c_str(), errno);
    }
  }

  void exchange(const std::string& one, const std::string& other) override {
    if (::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) != 0) {
      fail(one, ("exchanging it with " + other).c_str(), errno);
    }
  }

  void remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) {
      fail(path, "removing it", error.value());
    }
  }
};

}  // namespace

std::shared_ptr<FileOps> system_file_ops() {
  return std::make_shared<SystemFileOps>();
}

}  // namespace swapline
