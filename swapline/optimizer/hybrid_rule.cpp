// Hands each call on, with the parameter's number in its own rule.
#include "swapline/optimizer/hybrid_rule.h"

#include <algorithm>
#include <utility>

namespace swapline::detail {

void HybridGroups::add(const MuonSettings& settings) {
  places.push_back({true, muon->settings.size()});
  muon->settings.push_back(settings);
}

void HybridGroups::add(const AdamSettings& settings) {
  places.push_back({false, adam->settings.size()});
  adam->settings.push_back(settings);
  adam->had_amsgrad.push_back(settings.amsgrad);
}

void HybridGroups::remove_last() {
  if (places.back().has_matrices) {
    muon->settings.pop_back();
  } else {
    adam->settings.pop_back();
    adam->had_amsgrad.pop_back();
  }
  places.pop_back();
}

HybridRule::HybridRule(c10::Device device,
                       std::shared_ptr<const HybridGroups> groups,
                       const AdamOptions& options)
    : groups_(std::move(groups)), muon_(groups_->muon), adam_(device, groups_->adam, options) {}

const UpdateRule& HybridRule::rule_of(size_t param) const {
  return params_[param].is_matrix ? static_cast<const UpdateRule&>(muon_) : adam_;
}

UpdateRule& HybridRule::rule_of(size_t param) {
  return params_[param].is_matrix ? static_cast<UpdateRule&>(muon_) : adam_;
}

void HybridRule::add_param(const ListedParam& param) {
  const HybridGroups::Place& group = groups_->places[param.group];
  ListedParam known = param;
  known.group = group.index;
  if (group.has_matrices) {
    muon_.add_param(known);
    params_.push_back({true, num_matrices_++});
  } else {
    adam_.add_param(known);
    params_.push_back({false, params_.size() - num_matrices_});
  }
}

void HybridRule::truncate(size_t num_params) {
  params_.resize(std::min(num_params, params_.size()));
  num_matrices_ = static_cast<size_t>(
      std::count_if(params_.begin(), params_.end(), [](const Place& p) { return p.is_matrix; }));
  muon_.truncate(num_matrices_);
  adam_.truncate(params_.size() - num_matrices_);
}

void HybridRule::check(const GradScaling& scaling) const {
  muon_.check(scaling);
  adam_.check(scaling);
}

std::vector<StateRow> HybridRule::rows(size_t param) const {
  return rule_of(param).rows(params_[param].index);
}

StateShape HybridRule::shape(size_t param) const {
  return rule_of(param).shape(params_[param].index);
}

size_t HybridRule::scratch_bytes(std::span<const Part> parts) const {
  std::vector<Part> matrices;
  std::vector<Part> others;
  for (const Part& part : parts) {
    const Place& place = params_[part.param];
    (place.is_matrix ? matrices : others).push_back({place.index, part.num_elements});
  }
  return std::max(muon_.scratch_bytes(matrices), adam_.scratch_bytes(others));
}

bool HybridRule::has_step(size_t param) const {
  return rule_of(param).has_step(params_[param].index);
}

bool HybridRule::reads_step(size_t param) const {
  return rule_of(param).reads_step(params_[param].index);
}

void HybridRule::add(Operands operands) {
  const size_t param = std::exchange(operands.param, params_[operands.param].index);
  rule_of(param).add(std::move(operands));
}

void HybridRule::launch(const GradScaling& scaling, Scratch& scratch) {
  muon_.launch(scaling, scratch);
  adam_.launch(scaling, scratch);
}

void HybridRule::clear() {
  muon_.clear();
  adam_.clear();
}

}  // namespace swapline::detail
