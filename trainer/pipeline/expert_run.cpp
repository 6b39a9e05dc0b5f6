// Graphs end where tokens leave a device, and begin anew where they arrive.
#include "trainer/pipeline/expert_run.h"

#include "trainer/pipeline/stage_graph.h"

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/index_select.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

namespace swapline::trainer {

ExpertRun::ExpertRun(LayerOnLanes layer) : layer_(std::move(layer)), counts_(num_lanes()) {}

void ExpertRun::run_route(PerLane inputs, bool is_first_run) {
  const bool has_graph = c10::GradMode::is_enabled();
  for (size_t lane = 0; lane < num_lanes(); ++lane) {
    at::Tensor input = std::exchange(inputs[lane], {});
    if (has_graph) {
      input = as_leaf(input);
      inputs_.push_back(input);
    }
    routed_.push_back(layer_.layers[lane]->route(input, /*counts=*/is_first_run));
  }
}

void ExpertRun::run_attend() {
  for (size_t lane = 0; lane < num_lanes(); ++lane) {
    attended_.push_back(layer_.layers[lane]->attend(std::exchange(routed_[lane], {})));
  }
  routed_.clear();
}

void ExpertRun::run_experts(PerLane tokens, PerLane weights) {
  const bool has_graph = c10::GradMode::is_enabled();
  for (size_t lane = 0; lane < num_lanes(); ++lane) {
    at::Tensor own_tokens = std::exchange(tokens[lane], {});
    at::Tensor own_weights = std::exchange(weights[lane], {});
    if (has_graph) {
      tokens_.push_back(own_tokens = as_leaf(own_tokens));
      weights_.push_back(own_weights = as_leaf(own_weights));
    }
    expert_outputs_.push_back(
        layer_.layers[lane]->experts(own_tokens, own_weights, counts_at(lane)));
  }
}

void ExpertRun::route(PerLane inputs) {
  const at::AutoGradMode grad_mode(!layer_.recomputes);
  run_route(std::move(inputs), /*is_first_run=*/true);
  for (size_t lane = 0; lane < num_lanes(); ++lane) {
    counts_[lane] = layer_.layers[lane]->known_counts(routed_[lane]);
    if (counts_[lane].empty()) {
      counts_under_way_.push_back((*layer_.counts)[lane].start(routed_[lane].rows.ends));
    }
  }
}

int64_t ExpertRun::num_bytes_to_experts() const {
  const at::Tensor& token = routed_.front().normed;
  return routed_.front().rows.places.size(0) * (token.size(-1) + 1) *
         static_cast<int64_t>(token.itemsize());
}

Shipment ExpertRun::attend() {
  const at::AutoGradMode grad_mode(!layer_.recomputes);
  run_attend();
  PerLane tokens;
  PerLane weights;
  for (Attended& attended : attended_) {
    tokens.push_back(attended.tokens);
    weights.push_back(attended.weights);
    if (layer_.recomputes) {
      attended.tokens.reset();
      attended.weights.reset();
      attended.token_of_row.reset();
    }
  }
  for (size_t lane = 0; lane < counts_under_way_.size(); ++lane) {
    counts_[lane] = counts_under_way_[lane].read();
  }
  counts_under_way_.clear();
  return {{std::move(tokens), std::move(weights)}, route_to_experts(counts_)};
}

Shipment ExpertRun::experts(Arrived arrived) {
  const at::AutoGradMode grad_mode(!layer_.recomputes);
  run_experts(std::move(arrived[0]), std::move(arrived[1]));
  PerLane outputs = layer_.recomputes ? std::move(expert_outputs_) : expert_outputs_;
  if (layer_.recomputes) {
    expert_outputs_.clear();
  }
  return {{std::move(outputs)}, route_to_experts(counts_).reversed()};
}

PerLane ExpertRun::merge(Arrived arrived) {
  const c10::NoGradGuard no_grad;  // its gradients are known: send_gradients
  PerLane outputs;
  for (size_t lane = 0; lane < num_lanes(); ++lane) {
    const Attended& attended = attended_[lane];
    outputs.push_back(
        layer_.layers[lane]->merge(attended.residual, arrived[0][lane], attended.places));
  }
  if (layer_.recomputes) {
    attended_.clear();
  }
  return outputs;
}

void ExpertRun::attend_again(PerLane inputs) {
  if (layer_.recomputes) {
    const at::AutoGradMode with_grad(true);
    run_route(std::move(inputs), /*is_first_run=*/false);
    run_attend();
  }
}

Shipment ExpertRun::send_gradients(const PerLane& gradients) {
  const c10::NoGradGuard no_grad;
  output_gradients_ = gradients;
  PerLane of_returned;
  PerLane tokens;
  PerLane weights;
  for (size_t lane = 0; lane < num_lanes(); ++lane) {
    const Attended& attended = attended_[lane];
    // What merge adds up comes from these rows.
    of_returned.push_back(gradients[lane].flatten(0, 1).index_select(0, attended.token_of_row));
    tokens.push_back(attended.tokens);
    weights.push_back(attended.weights);
  }
  std::vector<PerLane> sent = {of_returned};
  if (layer_.recomputes) {
    sent.push_back(std::move(tokens));
    sent.push_back(std::move(weights));
  }
  return {std::move(sent), route_to_experts(counts_)};
}

Shipment ExpertRun::experts_backward(Arrived arrived) {
  const at::AutoGradMode with_grad(true);
  if (layer_.recomputes) {
    run_experts(std::move(arrived[1]), std::move(arrived[2]));
  }
  PerLane of_tokens;
  PerLane of_weights;
  for (size_t lane = 0; lane < num_lanes(); ++lane) {
    torch::autograd::backward({std::exchange(expert_outputs_[lane], {})},
                              {std::exchange(arrived[0][lane], {})});
    of_tokens.push_back(std::exchange(tokens_[lane], {}).grad());
    of_weights.push_back(std::exchange(weights_[lane], {}).grad());
  }
  return {{std::move(of_tokens), std::move(of_weights)}, route_to_experts(counts_).reversed()};
}

PerLane ExpertRun::attend_backward(Arrived arrived) {
  PerLane gradients;
  for (size_t lane = 0; lane < num_lanes(); ++lane) {
    const Attended attended = std::exchange(attended_[lane], {});
    torch::autograd::backward(
        {attended.residual, attended.tokens, attended.weights},
        {std::exchange(output_gradients_[lane], {}), arrived[0][lane], arrived[1][lane]});
    gradients.push_back(std::exchange(inputs_[lane], {}).grad());
  }
  return gradients;
}

std::vector<int64_t> ExpertRun::counts_at(size_t lane) const {
  const size_t num_local = counts_.front().size() / num_lanes();
  std::vector<int64_t> counts(num_local, 0);
  for (const std::vector<int64_t>& of_source : counts_) {
    for (size_t expert = 0; expert < num_local; ++expert) {
      counts[expert] += of_source[lane * num_local + expert];
    }
  }
  return counts;
}

}  // namespace swapline::trainer
