// Allocation at first use, as torch.optim does.
#include "swapline/optimizer/resident_states.h"

#include <ATen/ops/empty_strided.h>

namespace swapline::detail {

const std::vector<at::Tensor>& ResidentStates::of(size_t param,
                                                  const at::Tensor& like,
                                                  const std::vector<at::ScalarType>& dtypes) {
  const auto known = states_.find(param);
  if (known != states_.end()) {
    return known->second;
  }
  std::vector<at::Tensor> states;
  for (const at::ScalarType dtype : dtypes) {
    states.push_back(
        at::empty_strided(like.sizes(), like.strides(), like.options().dtype(dtype)).zero_());
  }
  for (const auto& state : states) {
    bytes_ += state.nbytes();
  }
  return states_[param] = std::move(states);
}

}  // namespace swapline::detail
