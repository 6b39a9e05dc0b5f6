// A StreamOrder that leaves one named wait out, and counts how often it was asked for each.
#pragma once

#include "swapline/copy/stream_order.h"

#include <array>
#include <optional>

namespace swapline::testing {

class DropWait : public StreamOrder {
 public:
  // nullopt: none is left out, only counted.
  explicit DropWait(std::optional<Wait> dropped = std::nullopt) : dropped_(dropped) {}

  void make_wait(const c10::Stream& stream, c10::Event& event, Wait why) override {
    ++counts_.at(static_cast<size_t>(why));
    if (why != dropped_) {
      StreamOrder::make_wait(stream, event, why);
    }
  }

  int count(Wait why) const { return counts_.at(static_cast<size_t>(why)); }

 private:
  std::optional<Wait> dropped_;
  std::array<int, kNumWaits> counts_{};
};

}  // namespace swapline::testing
