// Adam as torch.optim does it on whole tensors, everything resident on the device, written apart
// from the library: what the swapped optimizer's bits are held against.
#pragma once

#include "swapline/optimizer/adam_settings.h"

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::testing {

// Has parameters of its own, equal to those of `groups` at construction.
class Reference {
 public:
  Reference(const std::vector<AdamGroup>& groups, const AdamOptions& options);

  AdamSettings& settings(size_t group) { return groups_[group].settings; }
  // One update with the gradients that are set on the parameters of the groups given.
  void step();
  // Named as by snapshot() of training.h.
  std::map<std::string, at::Tensor> snapshot() const;

 private:
  struct Entry {
    at::Tensor param;  // laid out like the original
    std::vector<at::Tensor> moments;
    at::Tensor master;
    float step = 0;
  };

  void update(Entry& entry, const at::Tensor& grad, const AdamSettings& settings) const;

  std::vector<AdamGroup> groups_;
  AdamOptions options_;
  std::map<const c10::TensorImpl*, Entry> entries_;
};

}  // namespace swapline::testing
