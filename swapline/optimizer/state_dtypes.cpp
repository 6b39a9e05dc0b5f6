// Which dtype is whose.
#include "swapline/optimizer/state_dtypes.h"

#include <c10/core/ScalarTypeToTypeMeta.h>

namespace swapline::detail {

StateDtypes state_dtypes(at::ScalarType param, const AdamOptions& options) {
  StateDtypes dtypes;
  dtypes.param = param;
  dtypes.has_master = options.master_weights && (param == at::kHalf || param == at::kBFloat16);
  const at::ScalarType updated = dtypes.has_master ? at::kFloat : param;
  dtypes.moment = options.state_dtype.value_or(updated);
  dtypes.work = c10::promoteTypes(updated, dtypes.moment);
  return dtypes;
}

}  // namespace swapline::detail
