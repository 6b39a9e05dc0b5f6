// The states of a SwapGroup and the calls that lead from one to the next. Inside swap/ only.
#pragma once

#include "swapline/swap/swap_group.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace swapline::detail {

enum class Call {
  kSwapOut,
  kRelease,
  kReleaseWhenDone,
  kRecall,
  kSwapIn,
  kWaitSwapIn,
  kDiscard,
  kDropHostCopy,
};

struct Transition {
  Call call;
  std::string_view name;
  Residency from;
  Residency to;
};

inline constexpr std::array kTransitions = {
    Transition{Call::kSwapOut, "swap_out", Residency::kDevice, Residency::kSwappingOut},
    Transition{Call::kRelease, "release_device_storage", Residency::kSwappingOut, Residency::kHost},
    Transition{Call::kReleaseWhenDone,
               "release_device_storage_when_done",
               Residency::kSwappingOut,
               Residency::kHost},
    Transition{Call::kRecall, "recall", Residency::kSwappingOut, Residency::kDevice},
    Transition{Call::kSwapIn, "swap_in", Residency::kHost, Residency::kSwappingIn},
    Transition{Call::kWaitSwapIn, "wait_swap_in", Residency::kSwappingIn, Residency::kDevice},
    Transition{Call::kDiscard, "discard_device_copy", Residency::kDevice, Residency::kHost},
    Transition{Call::kDropHostCopy, "drop_host_copy", Residency::kDevice, Residency::kDevice},
};

constexpr const Transition& transition_of(Call call) {
  return *std::find_if(kTransitions.begin(), kTransitions.end(), [call](const Transition& row) {
    return row.call == call;
  });
}

}  // namespace swapline::detail
