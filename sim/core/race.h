// A pair of accesses to the same bytes that nothing orders.
#pragma once

#include "sim/export.h"

#include <cstdint>
#include <string>

namespace swapline::sim {

using StreamId = int32_t;
inline constexpr StreamId kHost = -1;  // the host itself, where a stream is expected

struct RaceAccess {
  std::string op;
  int device = 0;
  StreamId stream = 0;  // kHost: the host
  bool is_write = false;
};

struct Race {
  RaceAccess first;     // enqueued earlier
  RaceAccess second;    // not ordered after it
  uintptr_t begin = 0;  // the bytes both touch
  uintptr_t end = 0;
  bool is_host_memory = false;

  // Both operators, both streams, the range, and the wait that is missing.
  SWAPLINE_SIM_API std::string describe() const;
};

}  // namespace swapline::sim
