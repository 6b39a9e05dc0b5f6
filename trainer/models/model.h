// What the trainer asks of a model. It comes in parts, so that whoever runs it decides on which
// device and how each layer runs:
//   model.loss(run(model.layers(), model.embed(tokens)), targets, run_layer)
#pragma once

#include "trainer/config.h"
#include "trainer/device.h"
#include "trainer/models/layer.h"
#include "trainer/models/parameters.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// Where a model's parts live. Devices must outlive the model.
struct Placement {
  Device* embedding = nullptr;
  std::vector<Device*> layers;  // one for each layer
  Device* head = nullptr;       // final norm, output matrix, MTP modules

  static Placement all_on(Device& device, int64_t num_layers) {
    return {&device, std::vector<Device*>(static_cast<size_t>(num_layers), &device), &device};
  }
};

// Which of the ranks that share the routed experts this copy of the model is for.
struct ExpertShard {
  int64_t index = 0;
  int64_t count = 1;
};

// Sizes and arithmetic that follow from a model's shape, of the whole model.
struct ModelFigures {
  int64_t num_parameters = 0;
  int64_t num_layers = 0;
  int64_t num_mtp_layers = 0;
  int64_t dim = 0;
  double flops_per_token = 0;  // forward and backward, recompute not counted
  double head_in_layers = 0;   // work of the output matrix, as a share of a layer's
};

// How a layer is run: with recompute and swap, or just so.
using RunLayer = std::function<at::Tensor(const LayerPtr& layer, at::Tensor hidden_states)>;

// A tensor that belongs to a model's state and is no parameter.
struct NamedBuffer {
  std::string name;
  at::Tensor tensor;
};

// One matrix that two devices need: equal values, and the sum of both gradients for each.
using TiedParameters = std::pair<NamedParameter, NamedParameter>;

class Model {
 public:
  virtual ~Model() = default;

  // Tokens [B, T] on the embedding's device -> [B, T, D].
  virtual at::Tensor embed(const at::Tensor& tokens) const = 0;
  virtual const std::vector<LayerPtr>& layers() const = 0;
  // Mean cross entropy, a scalar in float32. hidden_states [B, T, D], targets [B, T] (the tokens,
  // one further), on the head's device. `run_layer` runs the layers of MTP modules.
  virtual at::Tensor loss(const at::Tensor& hidden_states,
                          const at::Tensor& targets,
                          const RunLayer& run_layer) const = 0;

  // Parameters of which the embedding's and the head's device both hold a copy.
  virtual std::vector<TiedParameters> tied_parameters() const { return {}; }

  // Changed in place by balance(); the same on all ranks.
  virtual std::vector<NamedBuffer> buffers() const { return {}; }

  // Load balance without an auxiliary loss. Rows that went to each expert since the last
  // balance(), one float tensor [E] for each layer with experts; a run in which they are not to be
  // counted again (recompute) is announced. `loads`: the same, summed over all ranks.
  virtual std::vector<at::Tensor> expert_loads() const { return {}; }
  virtual void set_counting(bool /*counts*/) {}
  virtual void balance(const std::vector<at::Tensor>& /*loads*/) {}
};

// Throws: UsageError for a flavor the model does not have, or options it does not take.
ModelFigures model_figures(const Config& config);
std::unique_ptr<Model> make_model(const Config& config,
                                  const Placement& placement,
                                  ExpertShard shard,
                                  ParameterFactory& parameters);

}  // namespace swapline::trainer
