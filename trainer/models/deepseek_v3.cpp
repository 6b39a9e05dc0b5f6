#include "trainer/models/deepseek_v3.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace swapline::trainer {
namespace {

constexpr double kMtpLossWeight = 0.3;  // DeepSeek-V3, for the first 10T tokens

void check_mtp(const DeepseekV3Shape& shape, int64_t seq_len) {
  if (shape.num_mtp_modules >= seq_len) {
    throw UsageError("--training.num-mtp-modules: found " + std::to_string(shape.num_mtp_modules) +
                     ", allowed is less than --training.seq-len, " + std::to_string(seq_len));
  }
}

}  // namespace

DeepseekV3::DeepseekV3(const DeepseekV3Shape& shape,
                       const DeepseekV3Options& options,
                       const Placement& placement,
                       ParameterFactory& parameters)
    : shape_(shape) {
  check_mtp(shape, options.seq_len);
  RopeTables ropes(shape.attention.rope_dim, shape.rope_theta, options.seq_len);
  const std::vector<int64_t> table = {shape.vocab_size, shape.dim};
  embedding_ = parameters.normal(*placement.embedding, "tok_embeddings.weight", table, 1.0);
  const NamedParameter embedding = parameters.parameters().back();
  for (int64_t index = 0; index < shape.num_layers; ++index) {
    Device& device = *placement.layers[static_cast<size_t>(index)];
    const LayerPlan plan{shape_,
                         index,
                         "layers." + std::to_string(index) + ".",
                         ropes.on(device, parameters),
                         device};
    if (index < shape.num_dense_layers) {
      layers_.push_back(make_dense_layer(plan, parameters));
    } else {
      const RoutedLayer routed =
          make_routed_layer(plan, options.shard, options.force_load_balance, parameters);
      layers_.push_back(routed.layer);
      add_balance(plan.prefix, routed.balance);
    }
  }
  Device& device = *placement.head;
  norm_ = parameters.ones(device, "norm.weight", {shape.dim});
  const double head_std = 1.0 / std::sqrt(static_cast<double>(shape.dim));
  head_ = parameters.normal(device, "output.weight", table, head_std);
  if (shape.num_mtp_modules > 0) {
    head_embedding_ = embedding_;
    if (&device != placement.embedding) {
      tied_.emplace_back(embedding, parameters.copy_to(device, embedding));
      head_embedding_ = tied_.back().second.tensor;
    }
  }
  for (int64_t index = 0; index < shape.num_mtp_modules; ++index) {
    const LayerPlan plan{shape_,
                         shape.num_layers + index,
                         "mtp." + std::to_string(index) + ".",
                         ropes.on(device, parameters),
                         device};
    mtp_modules_.push_back(
        make_mtp_module(plan, options.shard, options.force_load_balance, parameters));
    add_balance(plan.prefix, mtp_modules_.back().routed.balance);
  }
}

void DeepseekV3::add_balance(const std::string& prefix, std::shared_ptr<LoadBalance> balance) {
  buffers_.push_back({prefix + "moe.expert_bias", balance->bias});
  balances_.push_back(std::move(balance));
}

at::Tensor DeepseekV3::embed(const at::Tensor& tokens) const {
  return at::embedding(embedding_, tokens);
}

at::Tensor DeepseekV3::head_loss_of(const at::Tensor& hidden_states,
                                    const at::Tensor& norm,
                                    const at::Tensor& targets) const {
  return head_loss(
      at::rms_norm(hidden_states, {shape_.dim}, norm, shape_.norm_eps), head_, targets);
}

at::Tensor DeepseekV3::loss(const at::Tensor& hidden_states,
                            const at::Tensor& targets,
                            const RunLayer& run_layer) const {
  at::Tensor total = head_loss_of(hidden_states, norm_, targets);
  at::Tensor h = hidden_states;
  for (size_t index = 0; index < mtp_modules_.size(); ++index) {
    const MtpModule& module = mtp_modules_[index];
    const auto by = static_cast<int64_t>(index);
    const at::Tensor embedded = at::embedding(head_embedding_, moved_inputs(targets, by));
    h = module.forward(h, embedded, run_layer);
    const at::Tensor further = head_loss_of(h, module.norm, moved_targets(targets, by + 1));
    total = total + further * (kMtpLossWeight / static_cast<double>(mtp_modules_.size()));
  }
  return total;
}

std::vector<at::Tensor> DeepseekV3::expert_loads() const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> loads;
  for (const auto& balance : balances_) {
    loads.push_back(balance->loads());
  }
  return loads;
}

void DeepseekV3::set_counting(bool counts) {
  for (const auto& balance : balances_) {
    balance->counts = counts;
  }
}

void DeepseekV3::balance(const std::vector<at::Tensor>& loads) {
  const c10::NoGradGuard no_grad;
  TORCH_CHECK(loads.size() == balances_.size(),
              "balance: found loads of ",
              loads.size(),
              " layers, allowed are those of all ",
              balances_.size());
  for (size_t i = 0; i < loads.size(); ++i) {
    balances_[i]->change_bias(loads[i]);
  }
}

}  // namespace swapline::trainer
