// Which dtype is whose.
#include "swapline/optimizer/state_dtypes.h"

#include <cstddef>

#include <c10/core/ScalarTypeToTypeMeta.h>

namespace swapline::detail {

std::vector<at::ScalarType> StateDtypes::rows(int num_moments) const {
  std::vector<at::ScalarType> dtypes(static_cast<size_t>(num_moments), moment);
  if (has_master) {
    dtypes.push_back(work);
  }
  return dtypes;
}

StateDtypes state_dtypes(at::ScalarType param, const AdamOptions& options) {
  StateDtypes dtypes;
  dtypes.param = param;
  dtypes.has_master = options.master_weights && (param == at::kHalf || param == at::kBFloat16);
  const at::ScalarType updated = dtypes.has_master ? at::kFloat : param;
  dtypes.moment = options.state_dtype.value_or(updated);
  dtypes.work = c10::promoteTypes(updated, dtypes.moment);
  return dtypes;
}

const char* row_name(int row, int num_moments) {
  static constexpr const char* kMoments[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return row < num_moments ? kMoments[row] : "master_param";
}

}  // namespace swapline::detail
