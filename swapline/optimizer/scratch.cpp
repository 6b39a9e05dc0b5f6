// Views at rising offsets.
#include "swapline/optimizer/scratch.h"

#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace swapline::detail {

at::Tensor Scratch::take(at::ScalarType dtype, int64_t num_elements) {
  const auto item_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t bytes = padded(num_elements) * item_bytes;
  TORCH_INTERNAL_ASSERT(bytes_.defined() && used_bytes_ + bytes <= bytes_.numel(),
                        "an update needs more scratch memory than was planned");
  auto taken = bytes_.narrow(0, used_bytes_, num_elements * item_bytes).view(dtype);
  used_bytes_ += bytes;
  return taken;
}

}  // namespace swapline::detail
