// A copy engine: serves one copy at a time. A copy takes the earliest gap that is long enough, so
// the order in which copies are enqueued does not matter, only when they are ready. A kernel's own
// accesses are many small ones and take whatever gaps there are.
#pragma once

#include "sim/core/device_spec.h"

#include <algorithm>
#include <map>

namespace swapline::sim {

class Engine {
 public:
  // Books `duration` from `ready` on and returns when it starts. No later booking will be ready
  // before `horizon`; older bookings are forgotten.
  Nanos book(Nanos ready, Nanos duration, Nanos horizon) {
    forget(horizon);
    Nanos start = ready;
    auto next = busy_.upper_bound(start);
    if (next != busy_.begin()) {
      start = std::max(start, std::prev(next)->second);
    }
    while (next != busy_.end() && next->first < start + duration) {
      start = next->second;
      ++next;
    }
    insert(start, start + duration);
    return start;
  }

  // Books `duration` in pieces, in every gap from `ready` on, and returns when the last one ends;
  // `ready` for a duration of 0.
  Nanos book_pieces(Nanos ready, Nanos duration, Nanos horizon) {
    forget(horizon);
    Nanos at = ready;
    while (duration > 0) {
      const auto next = busy_.upper_bound(at);
      if (next != busy_.begin() && std::prev(next)->second > at) {
        at = std::prev(next)->second;
        continue;
      }
      const Nanos piece = next == busy_.end() ? duration : std::min(duration, next->first - at);
      insert(at, at + piece);
      at += piece;
      duration -= piece;
    }
    return at;
  }

 private:
  void forget(Nanos horizon) {
    while (!busy_.empty() && busy_.begin()->second <= horizon) {
      busy_.erase(busy_.begin());
    }
  }

  void insert(Nanos begin, Nanos end) {
    auto next = busy_.lower_bound(begin);
    if (next != busy_.end() && next->first == end) {
      end = next->second;
      next = busy_.erase(next);
    }
    if (next != busy_.begin() && std::prev(next)->second == begin) {
      std::prev(next)->second = end;
    } else {
      busy_.emplace_hint(next, begin, end);
    }
  }

  std::map<Nanos, Nanos> busy_;  // begin -> end, disjoint, neighbours joined
};

}  // namespace swapline::sim
