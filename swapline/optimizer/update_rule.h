// What an optimizer does to one parameter, apart from where its states are and how they get there.
#pragma once

#include "swapline/optimizer/chunk_plan.h"
#include "swapline/optimizer/grad_scaling.h"
#include "swapline/optimizer/param_list.h"
#include "swapline/optimizer/scratch.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace swapline::detail {

// One state of a parameter: an element for each of the parameter's.
struct StateRow {
  std::string name;  // as torch.optim has it
  at::ScalarType dtype = at::kFloat;
};

// What is updated together: a parameter, or a part of it with the same part of its gradient and
// states. All are dense, of the same number of elements and in the same order of memory. A part is
// a vector; a whole parameter is as the user has it.
struct Operands {
  size_t param = 0;
  at::Tensor tensor;
  at::Tensor grad;
  std::vector<at::Tensor> states;  // in the order of UpdateRule::rows()
  at::Tensor step;                 // fp32 scalar on the device: the number of this update, from 1
  double step_number = 0;          // the same on the host; not right under GradScaling::found_inf
  bool is_first = false;           // no update of the parameter came before
};

// A part of a parameter, by size only.
struct Part {
  size_t param = 0;
  int64_t num_elements = 0;
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Parameters come in the order of their indices. Throws c10::Error, and does not take it, for one
  // that the rule cannot update.
  virtual void add_param(const ListedParam& param) = 0;
  // Forgets the last ones.
  virtual void truncate(size_t num_params) = 0;

  // Whether updates heed GradScaling. May block the calling thread, once.
  virtual bool heeds_scaling() const { return false; }
  // The settings as they are now. Throws c10::Error for what is not allowed.
  virtual void check(const GradScaling& scaling) const = 0;

  // The states of a parameter, moments of one dtype first, a master last.
  virtual std::vector<StateRow> rows(size_t param) const = 0;
  // How they lie in host memory, and where they may be cut.
  virtual StateShape shape(size_t param) const = 0;
  // Device memory that an update of `parts` needs beside them.
  virtual size_t scratch_bytes(std::span<const Part> parts) const = 0;
  // Whether torch.optim has a `step` among the parameter's states.
  virtual bool has_step(size_t /*param*/) const { return true; }
  // Whether the update of a parameter reads Operands::step.
  virtual bool reads_step(size_t param) const = 0;

  // Collects what launch() then updates on the current stream. `scratch`: by scratch_bytes().
  virtual void add(Operands operands) = 0;
  virtual void launch(const GradScaling& scaling, Scratch& scratch) = 0;
  // Forgets what was added.
  virtual void clear() = 0;
  // Of update kernels, or groups of them that make one update; casts do not count.
  virtual int64_t num_launches() const = 0;
};

}  // namespace swapline::detail
