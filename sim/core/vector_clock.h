// What is known to be done: for each actor (the host, every stream) the number of its last action
// that happened before. The usual vector clock; see Fidge and Mattern, 1988.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace swapline::sim {

// Index of an actor: 0 is the host, streams follow in the order they are made.
using Actor = uint32_t;
inline constexpr Actor kHostActor = 0;

class VectorClock {
 public:
  uint64_t at(Actor actor) const { return actor < ticks_.size() ? ticks_[actor] : 0; }

  uint64_t advance(Actor actor) {
    if (actor >= ticks_.size()) {
      ticks_.resize(actor + 1);
    }
    return ++ticks_[actor];
  }

  void join(const VectorClock& other) {
    if (other.ticks_.size() > ticks_.size()) {
      ticks_.resize(other.ticks_.size());
    }
    for (size_t i = 0; i < other.ticks_.size(); ++i) {
      ticks_[i] = std::max(ticks_[i], other.ticks_[i]);
    }
  }

 private:
  std::vector<uint64_t> ticks_;
};

}  // namespace swapline::sim
