// The dtypes of a parameter's update, and the names of its states.
#pragma once

#include "swapline/optimizer/adam_settings.h"

#include <vector>

#include <c10/core/ScalarType.h>

namespace swapline::detail {

struct StateDtypes {
  at::ScalarType param = at::kFloat;
  at::ScalarType moment = at::kFloat;  // of exp_avg and its like
  at::ScalarType work = at::kFloat;    // of the arithmetic, and of the master
  bool has_master = false;

  // Of each row of states: `num_moments` moments and, last, the master.
  std::vector<at::ScalarType> rows(int num_moments) const;
};

StateDtypes state_dtypes(at::ScalarType param, const AdamOptions& options);

// The name of a row under which Adam::state() gives it.
const char* row_name(int row, int num_moments);

}  // namespace swapline::detail
