// Pairs of timed events, read oldest first.
#include "swapline/copy/timed_span.h"

#include <utility>

#include <c10/util/Exception.h>

namespace swapline {

void TimedSpans::begin(const c10::Stream& stream) {
  collect(/*block=*/false);
  c10::Event start(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT);
  start.record(stream);
  open_.push_back(
      {std::move(start), c10::Event(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT)});
}

void TimedSpans::end(const c10::Stream& stream) {
  TORCH_CHECK(!open_.empty() && !open_.back().end.was_marked_for_recording(),
              "TimedSpans: end() without begin()");
  open_.back().end.record(stream);
}

double TimedSpans::total_ms() {
  collect(/*block=*/true);
  return total_ms_;
}

void TimedSpans::reset() {
  open_.clear();
  total_ms_ = 0;
}

void TimedSpans::collect(bool block) {
  while (!open_.empty() && open_.front().end.was_marked_for_recording()) {
    Span& span = open_.front();
    if (block) {
      span.end.synchronize();
    } else if (!span.end.query()) {
      return;
    }
    total_ms_ += span.begin.elapsedTime(span.end);
    open_.pop_front();
  }
}

}  // namespace swapline
