// Reads /proc and the cgroup files for what may still be pinned. A file that is missing or says
// "max" sets no limit.
#include "swapline/memory/host_limits.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include <sys/resource.h>

namespace swapline {
namespace {

std::optional<size_t> to_number(const std::string& text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) {
    return std::nullopt;
  }
  return value;
}

std::optional<size_t> read_number(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  if (!(file >> word)) {
    return std::nullopt;
  }
  return to_number(word);
}

// A "Name:   123 kB" line of /proc/meminfo or /proc/self/status, in bytes.
std::optional<size_t> read_kilobytes(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    size_t kilobytes = 0;
    if (words >> key >> kilobytes && key == name + ":") {
      return kilobytes * 1024;
    }
  }
  return std::nullopt;
}

// Value of a "name 123" line of a cgroup's memory.stat.
size_t read_stat(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string key;
  size_t value = 0;
  while (file >> key >> value) {
    if (key == name) {
      return value;
    }
  }
  return 0;
}

struct CgroupFiles {
  std::string folder;  // the process's own group, then its ancestors up to the mount
  const char* limit;
  const char* usage;
  const char* inactive;
  const char* name;
};

// The folders of the process's memory cgroup and of its ancestors, for v2 and v1.
std::vector<CgroupFiles> cgroup_folders(const std::string& root) {
  std::vector<CgroupFiles> found;
  std::ifstream file(root + "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    const bool is_v2 = controllers.empty();
    const bool is_memory = (',' + controllers + ',').find(",memory,") != std::string::npos;
    if (!is_v2 && !is_memory) {
      continue;
    }
    const std::string mount = root + (is_v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    while (true) {
      while (!group.empty() && group.back() == '/') {
        group.pop_back();
      }
      found.push_back(is_v2 ? CgroupFiles{mount + group,
                                          "memory.max",
                                          "memory.current",
                                          "inactive_file",
                                          "the cgroup's memory.max"}
                            : CgroupFiles{mount + group,
                                          "memory.limit_in_bytes",
                                          "memory.usage_in_bytes",
                                          "total_inactive_file",
                                          "the cgroup's memory.limit_in_bytes"});
      if (group.empty()) {
        break;
      }
      group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
    }
  }
  return found;
}

std::optional<HostLimit> cgroup_limit(const CgroupFiles& files) {
  const auto limit = read_number(files.folder + '/' + files.limit);
  const auto usage = read_number(files.folder + '/' + files.usage);
  if (!limit || !usage) {
    return std::nullopt;
  }
  // Page cache that the kernel drops first counts as usage, but does not stand in the way.
  const size_t inactive = read_stat(files.folder + "/memory.stat", files.inactive);
  const size_t held = *usage - std::min(*usage, inactive);
  return HostLimit{*limit - std::min(*limit, held), files.name};
}

std::optional<HostLimit> locked_limit(const std::string& root) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  const size_t locked = read_kilobytes(root + "proc/self/status", "VmLck").value_or(0);
  const auto most = static_cast<size_t>(limit.rlim_cur);
  return HostLimit{most - std::min(most, locked), "RLIMIT_MEMLOCK (ulimit -l)"};
}

}  // namespace

std::optional<HostLimit> tightest_host_limit(bool device_locks_pages, const std::string& root) {
  const std::string base = root.empty() || root.back() != '/' ? root + '/' : root;
  std::optional<HostLimit> tightest;
  const auto consider = [&tightest](const std::optional<HostLimit>& limit) {
    if (limit && (!tightest || limit->free_bytes < tightest->free_bytes)) {
      tightest = limit;
    }
  };
  if (const auto available = read_kilobytes(base + "proc/meminfo", "MemAvailable")) {
    consider(HostLimit{*available, "MemAvailable of /proc/meminfo"});
  }
  for (const CgroupFiles& files : cgroup_folders(base)) {
    consider(cgroup_limit(files));
  }
  if (device_locks_pages) {
    consider(locked_limit(base));
  }
  return tightest;
}

}  // namespace swapline
