// A StreamOrder that throws at one wait of a kind: a device that is lost there.
#pragma once

#include "swapline/copy/stream_order.h"

#include <stdexcept>

namespace swapline::testing {

class LostDevice : public StreamOrder {
 public:
  // Lost at wait number `n` of the kind, from 0; below 0: not before lose_next().
  LostDevice(Wait at, int n) : at_(at), left_(n) {}

  void make_wait(const c10::Stream& stream, c10::Event& event, Wait why) override {
    if (why == at_ && left_-- == 0) {
      throw std::runtime_error("the device is lost");
    }
    StreamOrder::make_wait(stream, event, why);
  }
  void lose_next() { left_ = 0; }

 private:
  Wait at_;
  int left_;
};

}  // namespace swapline::testing
