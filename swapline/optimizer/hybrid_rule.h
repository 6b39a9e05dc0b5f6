// Two update rules in one: each parameter by the rule of its group.
#pragma once

#include "swapline/optimizer/adam_rule.h"
#include "swapline/optimizer/muon_rule.h"
#include "swapline/optimizer/update_rule.h"

#include <memory>
#include <vector>

namespace swapline::detail {

// The groups of both, numbered in one row.
struct HybridGroups {
  struct Place {
    bool has_matrices;
    size_t index;  // among those of its rule
  };

  std::vector<Place> places;
  std::shared_ptr<MuonGroups> muon = std::make_shared<MuonGroups>();
  std::shared_ptr<AdamGroups> adam = std::make_shared<AdamGroups>();

  void add(const MuonSettings& settings);
  void add(const AdamSettings& settings);
  void remove_last();
};

class HybridRule final : public UpdateRule {
 public:
  HybridRule(c10::Device device,
             std::shared_ptr<const HybridGroups> groups,
             const AdamOptions& options);

  void add_param(const ListedParam& param) override;
  void truncate(size_t num_params) override;
  void check(const GradScaling& scaling) const override;
  std::vector<StateRow> rows(size_t param) const override;
  StateShape shape(size_t param) const override;
  // The rules use it one after the other.
  size_t scratch_bytes(std::span<const Part> parts) const override;
  bool has_step(size_t param) const override;
  bool reads_step(size_t param) const override;
  void add(Operands operands) override;
  void launch(const GradScaling& scaling, Scratch& scratch) override;
  void clear() override;
  int64_t num_launches() const override { return muon_.num_launches() + adam_.num_launches(); }

 private:
  struct Place {
    bool is_matrix;
    size_t index;  // among the parameters of its rule
  };

  const UpdateRule& rule_of(size_t param) const;
  UpdateRule& rule_of(size_t param);

  std::shared_ptr<const HybridGroups> groups_;
  MuonRule muon_;
  AdamRule adam_;
  std::vector<Place> params_;
  size_t num_matrices_ = 0;
};

}  // namespace swapline::detail
