// Measures how long compute stands still for copies, step by step.
#pragma once

#include "swapline/copy/stream_order.h"
#include "trainer/device.h"

#include <mutex>
#include <utility>
#include <vector>

namespace swapline::trainer {

// Waits of one step, as pairs of marks on the compute stream.
struct ExposedSpans {
  std::vector<std::pair<TimeMark, TimeMark>> layer_inputs;
  std::vector<std::pair<TimeMark, TimeMark>> optimizer;
};

// Makes the waits that Swapline asks for, with a mark before and after each one that compute makes.
// Nothing is read until the marks are long past, so that measuring never makes the host wait.
class WaitMeter : public StreamOrder {
 public:
  explicit WaitMeter(Device& device) : device_(&device) {}

  void make_wait(const c10::Stream& stream, c10::Event& event, Wait why) override;

  // The spans since the last call.
  ExposedSpans take();

 private:
  Device* device_;
  std::mutex mutex_;  // backward runs on autograd's thread
  ExposedSpans spans_;
};

}  // namespace swapline::trainer
