// Copies whose bytes have not moved yet. A copy is made to happen when something ordered after it
// runs; whoever forgot to wait reads poison instead. Not thread-safe.
#pragma once

#include "sim/core/vector_clock.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace swapline::sim {

// Fills with bytes that read as NaN in every floating type.
void poison(void* data, size_t bytes);

class LateCopies {
 public:
  // Takes the copy on and poisons its destination. `clock` is what the copy is ordered after:
  // copies out of the destination that it knows to be done happen first, as their bytes are
  // overwritten.
  void add(Actor actor,
           uint64_t tick,
           const VectorClock& clock,
           void* dst,
           const void* src,
           size_t bytes);
  // Moves the bytes of every copy that `clock` knows to be done, in the order they were added.
  void demand(const VectorClock& clock);
  // Moves the bytes of every copy that reads or writes the range, and of those added before it,
  // which it may build on: the range's memory goes away.
  void demand_touching(uintptr_t begin, uintptr_t end);

 private:
  struct Copy {
    Actor actor;
    uint64_t tick;
    void* dst;
    const void* src;
    size_t bytes;
  };
  template <typename Predicate>
  void move_if(Predicate is_wanted);

  std::vector<Copy> copies_;
};

}  // namespace swapline::sim
