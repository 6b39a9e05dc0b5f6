#include "trainer/models/mtp.h"

#include <utility>

#include <ATen/ATen.h>

namespace swapline::trainer {

at::Tensor MtpModule::forward(const at::Tensor& hidden_states,
                              const at::Tensor& embedded,
                              const RunLayer& run_layer) const {
  const auto normed = [this](const at::Tensor& x, const at::Tensor& weight) {
    return at::rms_norm(x, weight.sizes(), weight, norm_eps);
  };
  at::Tensor joined =
      at::cat({normed(hidden_states, hidden_norm), normed(embedded, embedding_norm)}, -1);
  return run_layer(routed.layer, at::linear(std::exchange(joined, {}), projection));
}

MtpModule make_mtp_module(const LayerPlan& plan,
                          ExpertShard shard,
                          bool force_load_balance,
                          ParameterFactory& parameters) {
  const int64_t dim = plan.shape.dim;
  const auto ones = [&](const char* name) {
    return parameters.ones(plan.device, plan.prefix + name, {dim});
  };
  MtpModule made;
  made.hidden_norm = ones("hnorm.weight");
  made.embedding_norm = ones("enorm.weight");
  made.projection =
      parameters.normal(plan.device, plan.prefix + "eh_proj.weight", {dim, 2 * dim}, 0.02);
  made.routed = make_routed_layer(plan, shard, force_load_balance, parameters);
  made.norm = ones("norm.weight");
  made.norm_eps = plan.shape.norm_eps;
  return made;
}

at::Tensor moved_targets(const at::Tensor& targets, int64_t by) {
  const at::Tensor ignored = at::full({targets.size(0), by}, -1, targets.options());
  return at::cat({targets.narrow(1, by, targets.size(1) - by), ignored}, 1);
}

at::Tensor moved_inputs(const at::Tensor& tokens, int64_t by) {
  return by == 0 ? tokens : at::roll(tokens, -by, 1);
}

}  // namespace swapline::trainer
