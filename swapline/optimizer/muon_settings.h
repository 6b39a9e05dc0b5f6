// What the user sets for Muon: the hyperparameters of a group of matrices.
#pragma once

#include "swapline/export.h"

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

// How the learning rate of a matrix [m, n] follows from the group's.
enum class MuonLrRule {
  kOriginal,       // lr · √max(1, m / n)
  kMatchRmsAdamw,  // lr · 0.2 · √max(m, n): updates as large as AdamW's, whose lr then fits
};

// With hybrid_ns: the iterations that have the group's coefficients.
inline constexpr int64_t kNumFastNsSteps = 8;

// A group's hyperparameters, as in torch.optim.Muon. May be changed between steps; step() reads
// them.
struct MuonSettings {
  double lr = 1e-3;
  double weight_decay = 0.1;  // decoupled
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;     // the least norm that a matrix is divided by
  int64_t ns_steps = 5;  // Newton-Schulz iterations, fewer than 100
  MuonLrRule lr_rule = MuonLrRule::kOriginal;
  // Iterations beyond the eighth have coefficients (2, -1.5, 0.5), which bring singular values to 1
  // instead of near it: 8 + 2 with ns_steps 10. Not in torch.optim. Needs ns_steps above 8.
  bool hybrid_ns = false;
};

// Parameters are matrices [m, n], or [E, m, n]: E matrices that are updated each for itself, e.g.
// the weights of experts.
struct MuonGroup {
  std::vector<at::Tensor> params;
  MuonSettings settings = {};
};

// Throws c10::Error naming the hyperparameter and what is allowed.
SWAPLINE_API void check(const MuonSettings& settings);

}  // namespace swapline
