// From what the engine asks to the dtypes and the kernels of Adam.
#include "swapline/optimizer/adam_rule.h"

#include <algorithm>
#include <utility>

#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/util/Exception.h>

namespace swapline::detail {

AdamRule::AdamRule(c10::Device device,
                   std::shared_ptr<const AdamGroups> groups,
                   const AdamOptions& options)
    : groups_(std::move(groups)), options_(options), update_(device, options.kernel) {}

void AdamRule::add_param(const ListedParam& param) {
  update_.check(groups_->settings[param.group]);
  params_.push_back({param.group, param.tensor.numel(), state_dtypes(param.dtype, options_)});
}

bool AdamRule::heeds_scaling() const {
  return std::all_of(groups_->settings.begin(), groups_->settings.end(), [this](const auto& each) {
    return update_.scales(each);
  });
}

void AdamRule::check(const GradScaling& scaling) const {
  for (size_t g = 0; g < groups_->settings.size(); ++g) {
    const AdamSettings& settings = groups_->settings[g];
    TORCH_CHECK(groups_->had_amsgrad[g] || !settings.amsgrad,
                "amsgrad of group ",
                g,
                " was switched on after the group was made: there is no max_exp_avg_sq");
    swapline::check(settings);
    update_.check(settings);
    TORCH_CHECK(!settings.lr_tensor.defined() || update_.takes_tensor_lr(settings),
                "lr_tensor needs a fused kernel that takes it, and ",
                kernel_name(settings),
                " that updates group ",
                g,
                " does not: set lr");
    TORCH_CHECK(!scaling.is_used() || update_.scales(settings),
                "grad_scale and found_inf need a fused kernel that heeds them, and ",
                kernel_name(settings),
                " that updates group ",
                g,
                " does not: unscale the gradients and leave out the step where one of them is not "
                "finite");
  }
}

std::string AdamRule::kernel_name(const AdamSettings& settings) const {
  return update_.is_fused(settings) ? "the device's own" : "the portable one";
}

std::vector<StateRow> AdamRule::rows(size_t param) const {
  static constexpr const char* kMoments[] = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  const StateDtypes& dtypes = params_[param].dtypes;
  std::vector<StateRow> rows;
  for (int i = 0; i < num_moments(param); ++i) {
    rows.push_back({kMoments[i], dtypes.moment});
  }
  if (dtypes.has_master) {
    rows.push_back({"master_param", dtypes.work});
  }
  return rows;
}

StateShape AdamRule::shape(size_t param) const {
  const StateDtypes& dtypes = params_[param].dtypes;
  StateShape shape;
  shape.numel = params_[param].numel;
  shape.item_bytes = c10::elementSize(dtypes.moment);
  shape.num_states = num_moments(param);
  shape.master_bytes = dtypes.has_master ? c10::elementSize(dtypes.work) : 0;
  return shape;
}

size_t AdamRule::scratch_bytes(std::span<const Part> parts) const {
  size_t bytes = 0;
  for (const Part& part : parts) {
    bytes += static_cast<size_t>(Scratch::padded(part.num_elements)) *
             update_.scratch_bytes(
                 params_[part.param].dtypes, num_moments(part.param), settings(part.param));
  }
  return bytes;
}

bool AdamRule::reads_step(size_t param) const {
  return update_.is_fused(settings(param));
}

void AdamRule::add(Operands operands) {
  const Param& param = params_[operands.param];
  AdamOperands all;
  all.param = std::move(operands.tensor);
  all.grad = std::move(operands.grad);
  if (param.dtypes.has_master) {
    all.master = std::move(operands.states.back());
    all.is_master_new = operands.is_first;
    operands.states.pop_back();
  }
  all.moments = std::move(operands.states);
  all.step = std::move(operands.step);
  all.step_number = operands.step_number;
  update_.add(param.group, param.dtypes, std::move(all));
}

void AdamRule::launch(const GradScaling& scaling, Scratch& scratch) {
  update_.launch(groups_->settings, scaling, scratch);
}

}  // namespace swapline::detail
