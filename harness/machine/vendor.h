// What the machine asks of the vendor's functions in front of it, and what those all begin with.
#pragma once

#include "harness/machine/machine.h"

namespace swapline::harness {

// The stream behind one of the vendor's handles; defined by each fake. Requires: it was made here.
Stream& stream_of_vendor(void* handle);

// The machine, locked as long as this lives.
class Locked {
 public:
  Locked() : machine_(Machine::get()), lock_(machine_.mutex) {}
  Machine* operator->() const { return &machine_; }
  Machine& operator*() const { return machine_; }

 private:
  Machine& machine_;
  std::lock_guard<std::recursive_mutex> lock_;
};

}  // namespace swapline::harness
