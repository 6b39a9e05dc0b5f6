// Groups and their settings.
#include "trainer/rank_optimizer.h"

#include "swapline/optimizer/adam.h"
#include "swapline/optimizer/muon.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace swapline::trainer {
namespace {

AdamSettings adam_settings(const OptimizerConfig& config) {
  AdamSettings settings;
  settings.lr = config.lr;
  settings.beta1 = config.beta1;
  settings.beta2 = config.beta2;
  settings.eps = config.eps;
  settings.weight_decay = config.weight_decay;
  settings.decoupled = config.name != "Adam";
  return settings;
}

MuonSettings muon_settings(const OptimizerConfig& config) {
  MuonSettings settings;
  settings.lr = config.muon_lr.value_or(config.lr);
  settings.weight_decay = config.weight_decay;
  settings.momentum = config.muon_momentum;
  settings.nesterov = config.muon_enable_nesterov;
  settings.ns_steps = config.muon_ns_steps;
  settings.hybrid_ns = config.muon_hybrid_ns;
  settings.lr_rule =
      config.muon_adjust_lr_fn == "original" ? MuonLrRule::kOriginal : MuonLrRule::kMatchRmsAdamw;
  return settings;
}

}  // namespace

bool is_for_muon(const NamedParameter& parameter) {
  static constexpr std::array<std::string_view, 3> kOthers = {"embed", "lm_head", "output"};
  const int64_t num_dims = parameter.tensor.dim();
  return (num_dims == 2 || num_dims == 3) &&
         std::none_of(kOthers.begin(), kOthers.end(), [&](std::string_view word) {
           return parameter.name.find(word) != std::string::npos;
         });
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config,
                                          const std::vector<NamedParameter>& parameters,
                                          std::shared_ptr<SwapContext> context,
                                          const AdamOptions& options) {
  MuonGroup matrices = {{}, muon_settings(config)};
  AdamGroup others = {{}, adam_settings(config)};
  for (const NamedParameter& parameter : parameters) {
    const bool is_matrix = config.name == "Muon" && is_for_muon(parameter);
    (is_matrix ? matrices.params : others.params).push_back(parameter.tensor);
  }
  if (config.name != "Muon") {
    return std::make_unique<Adam>(std::move(context), std::vector{others}, options);
  }
  return std::make_unique<Muon>(
      std::move(context), std::vector{matrices}, std::vector{others}, options);
}

void check_muon(const OptimizerConfig& config) {
  if (config.name != "Muon") {
    return;
  }
  if (config.muon_lr && config.muon_adjust_lr_fn != "original") {
    throw UsageError(
        "--optimizer.muon-lr: found with --optimizer.muon-adjust-lr-fn match_rms_adamw, which "
        "makes --optimizer.lr right for all parameters; allowed with original");
  }
  if (config.muon_hybrid_ns && config.muon_ns_steps <= kNumFastNsSteps) {
    throw UsageError("--optimizer.muon-hybrid-ns: found with --optimizer.muon-ns-steps " +
                     std::to_string(config.muon_ns_steps) + ", allowed with more than " +
                     std::to_string(kNumFastNsSteps) +
                     ", as it changes the iterations beyond; 10 is usual");
  }
  const auto refuse = [](const std::string& option) {
    throw UsageError("--optimizer." + option +
                     ": found with --optimizer.name Muon, whose momentum has the parameters' type; "
                     "allowed with AdamW and Adam");
  };
  if (config.master_weights) {
    refuse("master-weights");
  }
  if (config.state_dtype != "auto") {
    refuse("state-dtype");
  }
}

}  // namespace swapline::trainer
