// Every wait of one stream for another that the library makes goes through here, by name. The table
// in docs/stream_order.md has a row for each name; the tests take each one away in turn and see the
// race checker report it.
#pragma once

#include "swapline/export.h"
#include "swapline/memory/shared_event.h"

#include <string_view>

#include <c10/core/Stream.h>

namespace swapline {

enum class Wait {
  kSwapOutAfterProducer,   // d2h: the tensor is written before it is copied out
  kReleaseAfterSwapOut,    // compute: the copy out is done before the device memory is let go
  kSwapInAfterAllocation,  // h2d: whoever used the memory before is done with it
  kSwapInAfterSwapOut,     // h2d: the bytes are on the host before they are read back
  kUseAfterSwapIn,         // compute: the copy in is done before the first use
  kCopyAfterHostReuse,     // d2h or h2d: former copies on a reused pinned buffer are done
  kLoadAfterSlotFree,      // h2d: the slot's former copy out is done before new states enter it
  kUpdateAfterLoad,        // compute: the chunk's states are there before the update
  kStoreAfterUpdate,       // d2h: the chunk is updated before it is copied out
  kLoadAfterStore,         // h2d: the chunk's last copy out (a step ago) is done before it is read
  kReleaseSlotAfterStore,  // compute: the last copy out is done before the slot's memory is let go
};
inline constexpr int kNumWaits = 11;

SWAPLINE_API std::string_view wait_name(Wait wait);

// Makes streams wait for events. The tests derive from it to drop one wait.
class SWAPLINE_API StreamOrder {
 public:
  virtual ~StreamOrder() = default;
  // Work enqueued on `stream` from now on starts after `event`. Never blocks the host.
  virtual void make_wait(const c10::Stream& stream, c10::Event& event, Wait why);
};

}  // namespace swapline
