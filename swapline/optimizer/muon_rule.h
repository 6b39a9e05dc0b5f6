// Muon as an update rule: one momentum, whole matrices.
#pragma once

#include "swapline/optimizer/muon_settings.h"
#include "swapline/optimizer/update_rule.h"

#include <memory>
#include <vector>

namespace swapline::detail {

// What a Muon and the rules on its devices share.
struct MuonGroups {
  std::vector<MuonSettings> settings;
};

class MuonRule final : public UpdateRule {
 public:
  explicit MuonRule(std::shared_ptr<const MuonGroups> groups) : groups_(std::move(groups)) {}

  void add_param(const ListedParam& param) override;
  void truncate(size_t num_params) override { params_.resize(num_params); }
  void check(const GradScaling& scaling) const override;
  std::vector<StateRow> rows(size_t param) const override;
  StateShape shape(size_t param) const override;
  // Batches are updated one after the other in the same scratch.
  size_t scratch_bytes(std::span<const Part> parts) const override;
  bool has_step(size_t /*param*/) const override { return false; }
  bool reads_step(size_t /*param*/) const override { return false; }
  void add(Operands operands) override { pending_.push_back(std::move(operands)); }
  void launch(const GradScaling& scaling, Scratch& scratch) override;
  void clear() override { pending_.clear(); }
  int64_t num_launches() const override { return num_launches_; }

 private:
  // A parameter's matrices. What is updated together is fixed by their shape alone: the bits of a
  // batched product may depend on the size of the batch.
  struct Matrices {
    size_t group = 0;
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;  // [m, n] or [E, m, n]
    std::vector<int64_t> strides;
    int64_t batch = 1;  // matrices of one update

    int64_t rows() const { return sizes[sizes.size() - 2]; }
    int64_t columns() const { return sizes.back(); }
    int64_t numel_of_one() const { return rows() * columns(); }
    int64_t count() const { return sizes.size() == 3 ? sizes[0] : 1; }
    // Each is a stretch of memory of its own.
    bool are_apart() const { return sizes.size() == 3 && strides[0] == numel_of_one(); }
  };

  void update(const Operands& operands, Scratch& scratch);
  void update_batch(const Matrices& matrices,
                    const at::Tensor& param,
                    const at::Tensor& grad,
                    const at::Tensor& momentum,
                    Scratch& scratch);

  std::shared_ptr<const MuonGroups> groups_;
  std::vector<Matrices> params_;
  std::vector<Operands> pending_;
  int64_t num_launches_ = 0;
};

}  // namespace swapline::detail
