// How long parts of a stream's work took, by pairs of timed events: the same on every device.
#pragma once

#include "swapline/export.h"

#include <deque>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace swapline {

// Sums spans of device time. begin() and end() enqueue a timed event each on the stream; total_ms()
// reads those that are done. Not thread-safe.
class SWAPLINE_API TimedSpans {
 public:
  void begin(const c10::Stream& stream);
  void end(const c10::Stream& stream);
  // Sum over the spans since the last reset, in ms. Blocks the host until all of them are done.
  double total_ms();
  void reset();

 private:
  void collect(bool block);

  struct Span {
    c10::Event begin;
    c10::Event end;
  };
  std::deque<Span> open_;
  double total_ms_ = 0;
};

}  // namespace swapline
