// Which experts each token goes to, and with what weight; the balance of the experts' loads.
// Shapes: S tokens, D = dim, E experts, K of them a token, N = S * K rows.
#pragma once

#include "trainer/models/deepseek_v3_shape.h"
#include "trainer/models/layer.h"

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// Balance without an auxiliary loss: a bias that counts when experts are chosen, not in weights.
struct LoadBalance {
  at::Tensor bias;  // float32 [E], no parameter
  at::Tensor ends;  // int64 [E]: the rows that went to this expert and those before it
  bool counts = true;
  bool is_forced = false;  // tokens go round the experts in turn; the bias stays as it is

  // Rows that went to each expert since the last change. float32 [E].
  at::Tensor loads() const;
  // Towards experts with less than the mean, away from those with more. `loads`: float32 [E].
  void change_bias(const at::Tensor& loads);
};

struct Routing {
  at::Tensor weights;  // [S, K] in the tokens' dtype
  RowOrder rows;
};

struct Router {
  MoeShape shape;
  at::Tensor gate;  // [E, D]
  std::shared_ptr<LoadBalance> balance;

  // x: [S, D]. Enqueues only: the host does not wait. `counts`: for the load balance.
  Routing route(const at::Tensor& x, bool counts) const;
  // Rows of each of E experts when the balance is forced.
  std::vector<int64_t> forced_counts(int64_t num_rows) const;

 private:
  at::Tensor choose(const at::Tensor& scores) const;
};

}  // namespace swapline::trainer
