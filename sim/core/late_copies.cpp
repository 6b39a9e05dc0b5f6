#include "sim/core/late_copies.h"

#include <algorithm>
#include <cstring>

namespace swapline::sim {

void poison(void* data, size_t bytes) {
  std::memset(data, 0xff, bytes);
}

void LateCopies::add(Actor actor,
                     uint64_t tick,
                     const VectorClock& clock,
                     void* dst,
                     const void* src,
                     size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(dst);
  const bool is_read = std::any_of(copies_.begin(), copies_.end(), [&](const Copy& copy) {
    const auto read = reinterpret_cast<uintptr_t>(copy.src);
    return read < begin + bytes && read + copy.bytes > begin;
  });
  if (is_read) {
    demand(clock);
  }
  poison(dst, bytes);
  copies_.push_back({actor, tick, dst, src, bytes});
}

template <typename Predicate>
void LateCopies::move_if(Predicate is_wanted) {
  size_t kept = 0;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const Copy& copy = copies_[i];
    if (is_wanted(copy)) {
      std::memcpy(copy.dst, copy.src, copy.bytes);
    } else {
      copies_[kept++] = copy;
    }
  }
  copies_.resize(kept);
}

void LateCopies::demand(const VectorClock& clock) {
  if (!copies_.empty()) {
    move_if([&](const Copy& copy) { return clock.at(copy.actor) >= copy.tick; });
  }
}

void LateCopies::demand_touching(uintptr_t begin, uintptr_t end) {
  const auto touches = [&](const void* data, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    return address < end && address + bytes > begin;
  };
  size_t count = copies_.size();
  while (count > 0 && !touches(copies_[count - 1].dst, copies_[count - 1].bytes) &&
         !touches(copies_[count - 1].src, copies_[count - 1].bytes)) {
    --count;
  }
  size_t index = 0;
  move_if([&](const Copy&) { return index++ < count; });
}

}  // namespace swapline::sim
