// What the machine will let us pin: MemAvailable, the cgroup's limit (v1, v2), RLIMIT_MEMLOCK.
#pragma once

#include "swapline/export.h"

#include <cstddef>
#include <optional>
#include <string>

namespace swapline {

struct HostLimit {
  size_t free_bytes = 0;  // what is left under the tightest limit
  std::string name;       // which limit that is, for the error
};

// Reads the limits that apply to this process now. `root` stands in for "/" in tests.
// RLIMIT_MEMLOCK counts only when `device_locks_pages`. nullopt: no limit could be read.
SWAPLINE_API std::optional<HostLimit> tightest_host_limit(bool device_locks_pages,
                                                          const std::string& root = "/");

}  // namespace swapline
