// Groups and their settings.
#include "swapline/optimizer/muon.h"

#include "swapline/optimizer/hybrid_rule.h"

#include <utility>

#include <c10/util/Exception.h>

namespace swapline {
namespace {

std::shared_ptr<detail::HybridGroups> checked(const std::vector<MuonGroup>& matrices,
                                              const std::vector<AdamGroup>& others,
                                              const AdamOptions& options) {
  check(options);
  auto groups = std::make_shared<detail::HybridGroups>();
  for (const MuonGroup& group : matrices) {
    check(group.settings);
    groups->add(group.settings);
  }
  for (const AdamGroup& group : others) {
    check(group.settings);
    groups->add(group.settings);
  }
  return groups;
}

std::vector<std::vector<at::Tensor>> params_of(const std::vector<MuonGroup>& matrices,
                                               const std::vector<AdamGroup>& others) {
  std::vector<std::vector<at::Tensor>> params;
  for (const MuonGroup& group : matrices) {
    params.push_back(group.params);
  }
  for (const AdamGroup& group : others) {
    params.push_back(group.params);
  }
  return params;
}

}  // namespace

Muon::Muon(std::shared_ptr<SwapContext> context,
           std::vector<MuonGroup> matrices,
           std::vector<AdamGroup> others,
           AdamOptions options)
    : Muon(checked(matrices, others, options),
           {std::move(context)},
           params_of(matrices, others),
           options) {}

Muon::Muon(std::vector<std::shared_ptr<SwapContext>> contexts,
           std::vector<MuonGroup> matrices,
           std::vector<AdamGroup> others,
           AdamOptions options)
    : Muon(checked(matrices, others, options), contexts, params_of(matrices, others), options) {}

Muon::Muon(std::shared_ptr<detail::HybridGroups> shared,
           const std::vector<std::shared_ptr<SwapContext>>& contexts,
           const std::vector<std::vector<at::Tensor>>& params,
           const AdamOptions& options)
    : Optimizer(contexts,
                params,
                options,
                [&](c10::Device device) {
                  return std::make_unique<detail::HybridRule>(device, shared, options);
                }),
      groups_(std::move(shared)) {}

void Muon::add_group(MuonGroup group) {
  check(group.settings);
  groups_->add(group.settings);
  add_params_of(group.params);
}

void Muon::add_group(AdamGroup group) {
  check(group.settings);
  groups_->add(group.settings);
  add_params_of(group.params);
}

void Muon::add_params_of(const std::vector<at::Tensor>& params) {
  try {
    add_params(num_groups() - 1, {&params, 1});
  } catch (...) {
    groups_->remove_last();
    throw;
  }
}

size_t Muon::num_groups() const {
  return groups_->places.size();
}

bool Muon::has_matrices(size_t group) const {
  return groups_->places.at(group).has_matrices;
}

MuonSettings& Muon::settings(size_t group) {
  TORCH_CHECK(has_matrices(group), "group ", group, " is not Muon's: see adam_settings()");
  return groups_->muon->settings[groups_->places[group].index];
}

AdamSettings& Muon::adam_settings(size_t group) {
  TORCH_CHECK(!has_matrices(group), "group ", group, " is Muon's: see settings()");
  return groups_->adam->settings[groups_->places[group].index];
}

double Muon::lr(size_t group) const {
  const auto& place = groups_->places.at(group);
  return place.has_matrices ? groups_->muon->settings[place.index].lr
                            : groups_->adam->settings[place.index].lr;
}

void Muon::set_lr(size_t group, double lr) {
  has_matrices(group) ? settings(group).lr = lr : adam_settings(group).lr = lr;
}

}  // namespace swapline
