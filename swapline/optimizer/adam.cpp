// Groups and their settings.
#include "swapline/optimizer/adam.h"

#include "swapline/optimizer/adam_rule.h"

#include <utility>

namespace swapline {
namespace {

std::shared_ptr<detail::AdamGroups> checked(const std::vector<AdamGroup>& groups,
                                            const AdamOptions& options) {
  check(options);
  auto checked_groups = std::make_shared<detail::AdamGroups>();
  for (const AdamGroup& group : groups) {
    check(group.settings);
    checked_groups->settings.push_back(group.settings);
    checked_groups->had_amsgrad.push_back(group.settings.amsgrad);
  }
  return checked_groups;
}

std::vector<std::vector<at::Tensor>> params_of(const std::vector<AdamGroup>& groups) {
  std::vector<std::vector<at::Tensor>> params;
  for (const AdamGroup& group : groups) {
    params.push_back(group.params);
  }
  return params;
}

}  // namespace

Adam::Adam(std::shared_ptr<SwapContext> context, std::vector<AdamGroup> groups, AdamOptions options)
    : Adam(checked(groups, options), {std::move(context)}, groups, options) {}

Adam::Adam(std::vector<std::shared_ptr<SwapContext>> contexts,
           std::vector<AdamGroup> groups,
           AdamOptions options)
    : Adam(checked(groups, options), contexts, groups, options) {}

Adam::Adam(std::shared_ptr<detail::AdamGroups> shared,
           const std::vector<std::shared_ptr<SwapContext>>& contexts,
           const std::vector<AdamGroup>& groups,
           const AdamOptions& options)
    : Optimizer(contexts,
                params_of(groups),
                options,
                [&](c10::Device device) {
                  return std::make_unique<detail::AdamRule>(device, shared, options);
                }),
      groups_(std::move(shared)) {}

void Adam::add_group(AdamGroup group) {
  check(group.settings);
  groups_->settings.push_back(group.settings);
  groups_->had_amsgrad.push_back(group.settings.amsgrad);
  try {
    add_params(num_groups() - 1, {&group.params, 1});
  } catch (...) {
    groups_->settings.pop_back();
    groups_->had_amsgrad.pop_back();
    throw;
  }
}

size_t Adam::num_groups() const {
  return groups_->settings.size();
}

AdamSettings& Adam::settings(size_t group) {
  return groups_->settings.at(group);
}

double Adam::lr(size_t group) const {
  return groups_->settings.at(group).lr;
}

void Adam::set_lr(size_t group, double lr) {
  groups_->settings.at(group).lr = lr;
}

}  // namespace swapline
