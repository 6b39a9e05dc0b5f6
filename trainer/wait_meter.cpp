// Which waits count, and for whom.
#include "trainer/wait_meter.h"

namespace swapline::trainer {
namespace {

bool is_for_layer_inputs(Wait why) {
  return why == Wait::kReleaseAfterSwapOut || why == Wait::kUseAfterSwapIn;
}

bool is_for_optimizer(Wait why) {
  return why == Wait::kUpdateAfterLoad || why == Wait::kReleaseSlotAfterStore;
}

}  // namespace

void WaitMeter::make_wait(const c10::Stream& stream, c10::Event& event, Wait why) {
  if (!is_for_layer_inputs(why) && !is_for_optimizer(why)) {
    StreamOrder::make_wait(stream, event, why);
    return;
  }
  const TimeMark begin = device_->mark(stream);
  StreamOrder::make_wait(stream, event, why);
  const std::lock_guard lock(mutex_);
  auto& spans = is_for_optimizer(why) ? spans_.optimizer : spans_.layer_inputs;
  spans.emplace_back(begin, device_->mark(stream));
}

ExposedSpans WaitMeter::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(spans_, {});
}

}  // namespace swapline::trainer
