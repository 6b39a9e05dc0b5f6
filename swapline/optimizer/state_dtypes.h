// The dtypes of a parameter's update, and the names of its states.
#pragma once

#include "swapline/optimizer/adam_settings.h"

#include <c10/core/ScalarType.h>

namespace swapline::detail {

struct StateDtypes {
  at::ScalarType param = at::kFloat;
  at::ScalarType moment = at::kFloat;  // of exp_avg and its like
  at::ScalarType work = at::kFloat;    // of the arithmetic, and of the master
  bool has_master = false;
};

StateDtypes state_dtypes(at::ScalarType param, const AdamOptions& options);

}  // namespace swapline::detail
