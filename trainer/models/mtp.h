// Multi-token prediction: modules behind the last layer of which each foretells one token further
// than the one before it. Shapes: B sequences, T tokens, D = dim.
#pragma once

#include "trainer/models/deepseek_v3_layer.h"

namespace swapline::trainer {

struct MtpModule {
  at::Tensor hidden_norm, embedding_norm;  // [D]
  at::Tensor projection;                   // [D, 2 D]
  RoutedLayer routed;
  at::Tensor norm;  // [D], before the head
  double norm_eps = 0;

  // hidden_states: of the last layer or the module before, [B, T, D]; embedded: of the token that
  // those foretell, [B, T, D]. -> [B, T, D], to be normed for the head.
  at::Tensor forward(const at::Tensor& hidden_states,
                     const at::Tensor& embedded,
                     const RunLayer& run_layer) const;
};

MtpModule make_mtp_module(const LayerPlan& plan,
                          ExpertShard shard,
                          bool force_load_balance,
                          ParameterFactory& parameters);

// tokens moved to the left along T. [B, T] -> [B, T]. What comes in from the right is -1, or, for
// embedding, the tokens that left: causal layers let nothing of them reach the others.
at::Tensor moved_targets(const at::Tensor& targets, int64_t by);
at::Tensor moved_inputs(const at::Tensor& tokens, int64_t by);

}  // namespace swapline::trainer
