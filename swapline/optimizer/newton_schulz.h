// Newton-Schulz iterations: from a matrix U S Vᵀ to nearly U Vᵀ by products alone.
#pragma once

#include "swapline/optimizer/muon_settings.h"
#include "swapline/optimizer/scratch.h"

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

// Scratch that newton_schulz() takes for [rows, columns], or for a batch of them.
size_t newton_schulz_bytes(int64_t batch, int64_t rows, int64_t columns);

// Replaces the singular values of `x`, [m, n] or [B, m, n] of kBFloat16, by values near 1. The bits
// are those of torch.optim.Muon on [m, n]. Returns a tensor of x's sizes in scratch or in x, whose
// values are lost; enqueues on the current stream, allocates nothing.
at::Tensor newton_schulz(const at::Tensor& x, const MuonSettings& settings, Scratch& scratch);

}  // namespace swapline::detail
