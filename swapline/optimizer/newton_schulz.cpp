// The products are those of torch.optim.Muon in its order, written into scratch.
#include "swapline/optimizer/newton_schulz.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

namespace swapline::detail {
namespace {

constexpr auto kDtype = at::kBFloat16;
constexpr std::array<double, 3> kExactCoefficients = {2, -1.5, 0.5};
constexpr std::array<int64_t, 2> kMatrixDims = {-2, -1};

at::Tensor take(Scratch& scratch, at::IntArrayRef sizes) {
  int64_t numel = 1;
  for (const int64_t size : sizes) {
    numel *= size;
  }
  return scratch.take(kDtype, numel).view(sizes);
}

// result = a · b
void multiply(at::Tensor& result, const at::Tensor& a, const at::Tensor& b) {
  a.dim() == 2 ? at::mm_out(result, a, b) : at::bmm_out(result, a, b);
}

// result = beta · c + alpha · a · b
void multiply_add(at::Tensor& result,
                  const at::Tensor& c,
                  const at::Tensor& a,
                  const at::Tensor& b,
                  double beta,
                  double alpha) {
  a.dim() == 2 ? at::addmm_out(result, c, a, b, beta, alpha)
               : at::baddbmm_out(result, c, a, b, beta, alpha);
}

}  // namespace

size_t newton_schulz_bytes(int64_t batch, int64_t rows, int64_t columns) {
  const int64_t side = std::min(rows, columns);
  const int64_t elements = Scratch::padded(batch) + 2 * Scratch::padded(batch * side * side) +
                           Scratch::padded(batch * rows * columns);
  return static_cast<size_t>(elements) * at::elementSize(kDtype);
}

at::Tensor newton_schulz(const at::Tensor& x, const MuonSettings& settings, Scratch& scratch) {
  const bool is_tall = x.size(-2) > x.size(-1);
  const bool is_batch = x.dim() == 3;
  at::Tensor now = is_tall ? x.transpose(-2, -1) : x;
  const int64_t batch = is_batch ? x.size(0) : 1;
  const int64_t side = now.size(-2);

  at::Tensor norm = is_batch ? take(scratch, {batch, 1, 1}) : take(scratch, {1})[0];
  at::linalg_vector_norm_out(
      norm, now, 2, is_batch ? at::OptionalIntArrayRef(kMatrixDims) : std::nullopt, is_batch);
  norm.clamp_(settings.eps);
  now.div_(norm);  // no singular value is above 1 now

  const std::vector<int64_t> square =
      is_batch ? std::vector<int64_t>{batch, side, side} : std::vector<int64_t>{side, side};
  at::Tensor gram = take(scratch, square);
  at::Tensor polynomial = take(scratch, square);
  at::Tensor next = take(scratch, now.sizes());
  const at::Tensor former = x.as_strided(next.sizes(), next.strides());
  for (int64_t step = 0; step < settings.ns_steps; ++step) {
    const auto& [a, b, c] = settings.hybrid_ns && step >= kNumFastNsSteps
                                ? kExactCoefficients
                                : settings.ns_coefficients;
    multiply(gram, now, now.transpose(-2, -1));
    multiply_add(polynomial, gram, gram, gram, b, c);
    multiply_add(next, now, polynomial, now, a, 1);
    now = std::exchange(next, step == 0 ? former : now);
  }
  return is_tall ? now.transpose(-2, -1) : now;
}

}  // namespace swapline::detail
