// What a checkpoint holds of a run: each tensor of the model once, however many devices have it.
#pragma once

#include "trainer/models/model.h"
#include "trainer/models/parameters.h"
#include "trainer/rank.h"

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

struct HeldTensor {
  at::Tensor tensor;
  Optimizer* optimizer = nullptr;  // nullptr: no parameter
};

// A parameter or buffer of the whole model. Its shards, joined along the first dimension, are all
// of it; every device that holds a shard has a copy. Nearly always one shard with one copy.
struct SavedTensor {
  std::string name;
  std::vector<std::vector<HeldTensor>> shards;

  bool is_parameter() const { return shards.front().front().optimizer != nullptr; }
};

// In the model's order, parameters first. `models` and `parameters`: one for each lane. The ranks'
// optimizers must outlive what is returned.
std::vector<SavedTensor> saved_tensors(const std::vector<std::unique_ptr<Model>>& models,
                                       const std::vector<ParameterFactory>& parameters,
                                       const Ranks& ranks);

// "optimizer.state.NAME.": what the names of a parameter's states start with.
std::string state_prefix(const std::string& parameter);

}  // namespace swapline::trainer
