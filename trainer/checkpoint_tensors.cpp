// Gathering the devices' tensors by their names.
#include "trainer/checkpoint_tensors.h"

#include <unordered_map>
#include <utility>

namespace swapline::trainer {
namespace {

class TensorList {
 public:
  void add(const std::string& name, size_t shard, HeldTensor held) {
    const auto [place, is_new] = places_.try_emplace(name, tensors_.size());
    if (is_new) {
      tensors_.push_back({name, {}});
    }
    auto& shards = tensors_[place->second].shards;
    if (shards.size() <= shard) {
      shards.resize(shard + 1);
    }
    shards[shard].push_back(std::move(held));
  }
  std::vector<SavedTensor> take() { return std::move(tensors_); }

 private:
  std::vector<SavedTensor> tensors_;
  std::unordered_map<std::string, size_t> places_;
};

size_t device_index(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? 0 : static_cast<size_t>(tensor.device().index());
}

}  // namespace

std::vector<SavedTensor> saved_tensors(const std::vector<std::unique_ptr<Model>>& models,
                                       const std::vector<ParameterFactory>& parameters,
                                       const Ranks& ranks) {
  TensorList list;
  for (size_t lane = 0; lane < parameters.size(); ++lane) {
    for (const NamedParameter& parameter : parameters[lane].parameters()) {
      list.add(parameter.name,
               parameter.is_sharded ? lane : 0,
               {parameter.tensor, ranks[device_index(parameter.tensor)]->optimizer.get()});
    }
  }
  for (const auto& model : models) {
    for (const auto& [name, tensor] : model->buffers()) {
      list.add(name, 0, {tensor, nullptr});
    }
  }
  return list.take();
}

std::string state_prefix(const std::string& parameter) {
  return "optimizer.state." + parameter + ".";
}

}  // namespace swapline::trainer
