// Who touched which bytes last, and whether a new access is ordered after them.
//
// Keeps, per byte range, the last write and the reads since. Two accesses to the same bytes, one of
// them a write, race unless the later one's clock knows of the earlier. Freed memory keeps its
// entries: whoever gets it next must be ordered after its last users.
#pragma once

#include "sim/core/race.h"
#include "sim/core/simulator.h"
#include "sim/core/vector_clock.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace swapline::sim {

class AccessLog {
 public:
  struct Who {
    Actor actor = kHostActor;
    uint64_t tick = 0;                   // the actor's own count at this action
    const VectorClock* clock = nullptr;  // what is ordered before it
    std::string_view op;
  };
  struct Conflict {
    std::string first_op;
    Actor first_actor = 0;
    bool first_is_write = false;
    uintptr_t begin = 0;
    uintptr_t end = 0;
  };

  // Notes the access and appends the conflicts it has to `conflicts`.
  void note(const Who& who, const Access& access, std::vector<Conflict>& conflicts);
  // The bytes are gone (unmapped) or known to be idle.
  void forget(uintptr_t begin, uintptr_t end);

 private:
  struct Entry {
    Actor actor = 0;
    uint32_t op = 0;
    uint64_t tick = 0;  // 0: no access
  };
  struct Range {
    uintptr_t end = 0;
    Entry write;
    std::vector<Entry> reads;
  };
  using Ranges = std::map<uintptr_t, Range>;

  Ranges::iterator split(Ranges::iterator range, uintptr_t at);
  void check(const Who& who,
             const Access& access,
             uintptr_t begin,
             const Range& range,
             std::vector<Conflict>& conflicts) const;
  uint32_t intern(std::string_view op);

  Ranges ranges_;
  std::vector<std::string> ops_;
  std::unordered_map<std::string, uint32_t> op_ids_;
  std::string last_op_;
  uint32_t last_op_id_ = 0;
};

}  // namespace swapline::sim
