// Which parameters are shared, and the sums of their gradients.
#include "trainer/parallel/shared_gradients.h"

#include <algorithm>

#include <c10/core/GradMode.h>

namespace swapline::trainer {
namespace {

PerLane gradients_of(const PerLane& parameters) {
  PerLane gradients;
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

Device& device_of(const at::Tensor& tensor, const Ranks& ranks) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const auto& rank) {
    return rank->device.torch_device() == tensor.device();
  });
  return (*found)->device;
}

}  // namespace

SharedGradients::SharedGradients(const std::vector<std::unique_ptr<Model>>& models,
                                 const Ranks& ranks)
    : models_(models) {
  const size_t num_lanes = models.size();
  for (size_t first = 0; num_lanes > 1 && first < ranks.size(); first += num_lanes) {
    std::vector<Device*> devices;
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      devices.push_back(&ranks[first + lane]->device);
    }
    Shared shared{Lanes(devices, "gradients"), {}};
    for (size_t i = 0; i < ranks[first]->parameters.size(); ++i) {
      if (ranks[first]->parameters[i].is_sharded) {
        continue;
      }
      PerLane copies;
      for (size_t lane = 0; lane < num_lanes; ++lane) {
        copies.push_back(ranks[first + lane]->parameters[i].tensor);
      }
      shared.parameters.push_back(std::move(copies));
    }
    between_lanes_.push_back(std::move(shared));
  }
  for (const auto& model : models) {
    for (const auto& [one, other] : model->tied_parameters()) {
      tied_.emplace_back(
          Lanes({&device_of(one.tensor, ranks), &device_of(other.tensor, ranks)}, "gradients"),
          PerLane{one.tensor, other.tensor});
    }
  }
}

void SharedGradients::add_up() const {
  for (const auto& [lanes, parameters] : tied_) {
    lanes.add_up(gradients_of(parameters));
  }
  for (const Shared& shared : between_lanes_) {
    for (const PerLane& parameters : shared.parameters) {
      shared.lanes.add_up(gradients_of(parameters));
    }
  }
}

void SharedGradients::balance() const {
  std::vector<std::vector<at::Tensor>> loads;  // by lane, then layer
  for (const auto& model : models_) {
    loads.push_back(model->expert_loads());
  }
  for (size_t layer = 0; layer < loads.front().size(); ++layer) {
    PerLane of_layer;
    for (const auto& of_lane : loads) {
      of_layer.push_back(of_lane[layer]);
    }
    const auto shared =
        std::find_if(between_lanes_.begin(), between_lanes_.end(), [&](const Shared& each) {
          return each.lanes.device(0).torch_device() == of_layer.front().device();
        });
    if (shared != between_lanes_.end()) {
      shared->lanes.add_up(of_layer);
    }
  }
  for (size_t lane = 0; lane < models_.size(); ++lane) {
    models_[lane]->balance(loads[lane]);
  }
}

}  // namespace swapline::trainer
