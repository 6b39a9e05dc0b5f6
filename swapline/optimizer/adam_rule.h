// Adam and AdamW as an update rule.
#pragma once

#include "swapline/optimizer/adam_settings.h"
#include "swapline/optimizer/adam_update.h"
#include "swapline/optimizer/state_dtypes.h"
#include "swapline/optimizer/update_rule.h"

#include <memory>
#include <string>
#include <vector>

namespace swapline::detail {

// What an Adam and the rules on its devices share.
struct AdamGroups {
  std::vector<AdamSettings> settings;
  std::vector<bool> had_amsgrad;  // when the group came
};

class AdamRule final : public UpdateRule {
 public:
  AdamRule(c10::Device device,
           std::shared_ptr<const AdamGroups> groups,
           const AdamOptions& options);

  void add_param(const ListedParam& param) override;
  void truncate(size_t num_params) override { params_.resize(num_params); }
  bool heeds_scaling() const override;
  void check(const GradScaling& scaling) const override;
  std::vector<StateRow> rows(size_t param) const override;
  StateShape shape(size_t param) const override;
  size_t scratch_bytes(std::span<const Part> parts) const override;
  bool reads_step(size_t param) const override;
  void add(Operands operands) override;
  void launch(const GradScaling& scaling, Scratch& scratch) override;
  void clear() override { update_.clear(); }
  int64_t num_launches() const override { return update_.num_launches(); }

 private:
  struct Param {
    size_t group = 0;
    int64_t numel = 0;
    StateDtypes dtypes;
  };

  int num_moments(size_t param) const { return groups_->had_amsgrad[params_[param].group] ? 3 : 2; }
  const AdamSettings& settings(size_t param) const {
    return groups_->settings[params_[param].group];
  }

  std::string kernel_name(const AdamSettings& settings) const;

  std::shared_ptr<const AdamGroups> groups_;
  AdamOptions options_;
  std::vector<Param> params_;
  AdamUpdate update_;
};

}  // namespace swapline::detail
