// Matrices of odd kinds, and other parameters, for the tests of Muon.
#pragma once

#include "swapline/optimizer/muon.h"
#include "tests/optimizer/training.h"

#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::testing {

// Wide, tall, square, odd, single-row, empty and transposed matrices, experts, also transposed
// ones.
MuonGroup odd_matrices(const MuonSettings& settings, at::ScalarType dtype);
// What Muon does not take: vectors, a scalar, a table.
AdamGroup other_params(const AdamSettings& settings, at::ScalarType dtype);

// Parameters in the order of their groups.
std::vector<at::Tensor> params_of(const MuonGroup& matrices, const AdamGroup& others = {});
// For Gradients, which needs no settings.
std::vector<AdamGroup> as_groups(const std::vector<at::Tensor>& params);

// Everything an optimizer changes, on the CPU.
std::map<std::string, at::Tensor> snapshot(Optimizer& optimizer,
                                           const std::vector<at::Tensor>& params);

}  // namespace swapline::testing
