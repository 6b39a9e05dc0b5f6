#include "sim/core/race.h"

#include <cstdio>

namespace swapline::sim {
namespace {

std::string where(const RaceAccess& access) {
  if (access.stream == kHost) {
    return "the host";
  }
  return "stream " + std::to_string(access.stream) + " of device " + std::to_string(access.device);
}

std::string what(const RaceAccess& access) {
  return "'" + access.op + "' " + (access.is_write ? "writes" : "reads") + " on " + where(access);
}

}  // namespace

std::string Race::describe() const {
  char range[80];
  std::snprintf(range,
                sizeof range,
                "0x%llx, %llu bytes",
                static_cast<unsigned long long>(begin),
                static_cast<unsigned long long>(end - begin));
  return "race on " + std::string(is_host_memory ? "pinned host" : "device") + " memory (" + range +
         "): " + what(second) + " without waiting for " + what(first) + "; " + where(second) +
         " must wait for an event recorded on " + where(first) + " behind it";
}

}  // namespace swapline::sim
