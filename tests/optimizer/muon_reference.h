// Muon as torch.optim.Muon does it on whole matrices, everything resident on the device, written
// apart from the library: what the swapped optimizer's bits are held against. muon_torch_test holds
// it, in turn, against torch's own.
#pragma once

#include "swapline/optimizer/muon_settings.h"

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::testing {

class MuonReference {
 public:
  // Has parameters of its own, equal to those of `group` at construction;
  // [E, m, n] is one batch of E matrices.
  explicit MuonReference(const MuonGroup& group);

  MuonSettings& settings() { return group_.settings; }
  // One update with the gradients that are set on the parameters of the group given.
  void step();
  // Named as by snapshot() of muon_training.h, from parameter number `first` on.
  std::map<std::string, at::Tensor> snapshot(size_t first = 0) const;

 private:
  struct Entry {
    at::Tensor param;
    at::Tensor momentum;  // undefined before the first update
  };

  MuonGroup group_;
  std::vector<Entry> entries_;
};

}  // namespace swapline::testing
