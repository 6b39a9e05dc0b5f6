// Tokens' rows to the order of their experts and back. Both ways, and both their gradients, are
// gathers and sums over a token's own choices: nothing is added up in an order that could vary.
// Shapes: S tokens, K choices a token, N = S * K rows. places[i * K + k] is the row of token i's
// choice k.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// int64 [N] -> int64 [N]: the (token, choice) of each row.
at::Tensor inverse_of(const at::Tensor& places);

// Each row is that of its token: x[token_of_row]. [S, D] -> [N, D].
at::Tensor rows_of_tokens(const at::Tensor& x,
                          const at::Tensor& token_of_row,
                          const at::Tensor& places);

// The sum of each token's rows. [N, D] -> [N / K, D].
at::Tensor sum_of_rows(const at::Tensor& rows, const at::Tensor& places, int64_t num_choices);

}  // namespace swapline::trainer
