// Which parameters are shared, and the sums of their gradients.
#include "trainer/parallel/shared_gradients.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

namespace swapline::trainer {
namespace {

// Small gradients that travel as one: a copy's latency is that of some MiB.
constexpr size_t kBucketBytes = size_t{4} << 20;

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

// A bucket's gradients on their way: small ones packed into one tensor on each lane.
class SharedGradients::BucketSum {
 public:
  BucketSum(const Lanes& lanes, const Bucket& parameters) : gradients_(lanes.size()) {
    for (const PerLane& parameter : parameters) {
      for (size_t lane = 0; lane < lanes.size(); ++lane) {
        gradients_[lane].push_back(parameter[lane].grad());
      }
    }
    PerLane tensors;
    for (const std::vector<at::Tensor>& of_lane : gradients_) {
      tensors.push_back(is_packed() ? packed(of_lane) : of_lane.front());
    }
    packed_ = tensors;
    sum_.emplace(lanes.start_sum(std::move(tensors)));
  }

  void add() { sum_->add(); }
  void wait() {
    sum_->wait();
    for (size_t lane = 0; lane < gradients_.size() && is_packed(); ++lane) {
      at::_foreach_copy_(gradients_[lane], views_of(packed_[lane], gradients_[lane]));
    }
  }

 private:
  bool is_packed() const { return gradients_.front().size() > 1; }

  static at::Tensor packed(const std::vector<at::Tensor>& gradients) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& gradient : gradients) {
      flat.push_back(gradient.view({-1}));
    }
    return at::cat(flat);
  }

  static std::vector<at::Tensor> views_of(const at::Tensor& packed,
                                          const std::vector<at::Tensor>& like) {
    std::vector<at::Tensor> views;
    int64_t begin = 0;
    for (const at::Tensor& tensor : like) {
      views.push_back(packed.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
    return views;
  }

  std::vector<std::vector<at::Tensor>> gradients_;  // by lane
  PerLane packed_;
  std::optional<Sum> sum_;
};

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
      add_to_buckets(shared.buckets, std::move(copies));
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

void SharedGradients::add_to_buckets(std::vector<Bucket>& buckets, PerLane parameter) {
  size_t bytes = parameter.front().nbytes();
  if (!buckets.empty()) {
    for (const PerLane& other : buckets.back()) {
      bytes += other.front().nbytes();
    }
  }
  if (buckets.empty() || bytes > kBucketBytes) {
    buckets.emplace_back();
  }
  buckets.back().push_back(std::move(parameter));
}

void SharedGradients::add_up() const {
  const c10::NoGradGuard no_grad;
  for (const auto& [lanes, parameters] : tied_) {
    lanes.add_up(gradients_of(parameters));
  }
  for (const Shared& shared : between_lanes_) {
    // While one bucket is added up, the next one's parts and the last one's sums are under way.
    std::deque<BucketSum> under_way;
    for (const Bucket& bucket : shared.buckets) {
      under_way.emplace_back(shared.lanes, bucket);
      if (under_way.size() == 3) {
        under_way.front().wait();
        under_way.pop_front();
      }
      if (under_way.size() == 2) {
        under_way.front().add();
      }
    }
    if (!under_way.empty()) {
      under_way.back().add();
    }
    for (BucketSum& sum : under_way) {
      sum.wait();
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
