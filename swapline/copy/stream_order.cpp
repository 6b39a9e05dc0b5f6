// Names of the waits, and the one place where a stream is made to wait.
#include "swapline/copy/stream_order.h"

#include <array>

namespace swapline {

std::string_view wait_name(Wait wait) {
  constexpr std::array<std::string_view, kNumWaits> kNames = {"kSwapOutAfterProducer",
                                                              "kReleaseAfterSwapOut",
                                                              "kSwapInAfterAllocation",
                                                              "kSwapInAfterSwapOut",
                                                              "kUseAfterSwapIn",
                                                              "kCopyAfterHostReuse",
                                                              "kLoadAfterSlotFree",
                                                              "kUpdateAfterLoad",
                                                              "kStoreAfterUpdate",
                                                              "kLoadAfterStore",
                                                              "kReleaseSlotAfterStore"};
  return kNames.at(static_cast<size_t>(wait));
}

void StreamOrder::make_wait(const c10::Stream& stream, c10::Event& event, Wait /*why*/) {
  event.block(stream);
}

}  // namespace swapline
