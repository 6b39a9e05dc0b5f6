// The two kinds of layers: attention with a feed-forward, and attention with experts. Their parts:
// kNorm are all norms, the compressed vectors' too; kAttentionCore is what follows queries, keys
// and values; kFeedForward is the dense feed-forward, the shared experts, and the routed experts
// from their rows to the tokens' sums. The choice of experts is in no part: it is made once a
// forward.
#pragma once

#include "trainer/models/blocks.h"
#include "trainer/models/deepseek_v3_shape.h"
#include "trainer/models/model.h"
#include "trainer/models/moe_router.h"

#include <memory>
#include <string>

namespace swapline::trainer {

// What a layer is made with, and under which names its parameters go.
struct LayerPlan {
  const DeepseekV3Shape& shape;
  int64_t depth = 0;   // layers before it; deeper ones start with less output
  std::string prefix;  // of the parameters' names, with a dot at the end
  const Rope& rope;
  Device& device;
};

struct RoutedLayer {
  std::shared_ptr<const ExpertLayer> layer;
  std::shared_ptr<LoadBalance> balance;
};

LayerPtr make_dense_layer(const LayerPlan& plan, ParameterFactory& parameters);
// In a dry run, where nobody knows the counts, known_counts() throws UsageError unless
// `force_load_balance`; forward() does not need them. Throws: UsageError when the experts cannot be
// shared evenly.
RoutedLayer make_routed_layer(const LayerPlan& plan,
                              ExpertShard shard,
                              bool force_load_balance,
                              ParameterFactory& parameters);

}  // namespace swapline::trainer
