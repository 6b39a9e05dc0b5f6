// One pipeline stage in small on the simulated device: chains of recomputed layers, schedules of
// forwards and backwards of micro-batches, and what running them costs.
#pragma once

#include "swapline/layer_input/layer_inputs.h"
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace swapline::testing {

constexpr int64_t kStageLayers = 6;
constexpr int64_t kStageWidth = 64;

enum class Pass { kForward, kBackward };

struct Slot {
  Pass pass;
  int64_t microbatch = 0;
  int64_t chain = 0;
};

// `num_ahead` forwards before the first backward, then in turn: 1 is the last stage.
inline std::vector<Slot> one_forward_one_backward(int64_t num_microbatches, int64_t num_ahead) {
  std::vector<Slot> slots;
  for (int64_t i = 0; i < num_microbatches + num_ahead - 1; ++i) {
    if (i < num_microbatches) {
      slots.push_back({Pass::kForward, i});
    }
    if (i >= num_ahead - 1) {
      slots.push_back({Pass::kBackward, i - num_ahead + 1});
    }
  }
  return slots;
}

inline std::vector<Slot> all_forward_all_backward(int64_t num_microbatches, bool last_first) {
  std::vector<Slot> slots;
  for (int64_t i = 0; i < num_microbatches; ++i) {
    slots.push_back({Pass::kForward, i});
  }
  for (int64_t i = 0; i < num_microbatches; ++i) {
    slots.push_back({Pass::kBackward, last_first ? num_microbatches - 1 - i : i});
  }
  return slots;
}

// Two chains on one stage. Chain 0 of each micro-batch comes before its chain 1, backward the other
// way round; `num_ahead` forwards of either before the first backward.
inline std::vector<Slot> interleaved(int64_t num_microbatches, int64_t num_ahead) {
  std::vector<Slot> forwards;
  std::vector<Slot> backwards;
  for (int64_t pair = 0; pair < num_microbatches; pair += 2) {
    for (const int64_t chain : {0, 1}) {
      for (int64_t i = pair; i < pair + 2; ++i) {
        forwards.push_back({Pass::kForward, i, chain});
        backwards.push_back({Pass::kBackward, i, 1 - chain});
      }
    }
  }
  std::vector<Slot> slots;
  const auto ahead = static_cast<size_t>(num_ahead);
  for (size_t i = 0; i < forwards.size() + ahead - 1; ++i) {
    if (i < forwards.size()) {
      slots.push_back(forwards[i]);
    }
    if (i + 1 >= ahead) {
      slots.push_back(backwards[i + 1 - ahead]);
    }
  }
  return slots;
}

// Layers h + gelu(h U) D with an inner width of 4: most memory is wanted in backward.
class PipelineStage {
 public:
  explicit PipelineStage(int64_t num_rows, int64_t num_chains = 1) : num_rows_(num_rows) {
    for (int64_t i = 0; i < num_chains * kStageLayers; ++i) {
      parameters_.push_back(random_parameter({kStageWidth, 4 * kStageWidth}, 2 * i));
      parameters_.push_back(random_parameter({4 * kStageWidth, kStageWidth}, 2 * i + 1));
    }
    for (int64_t i = 0; i < kMostMicrobatches; ++i) {
      // What the stages before and after would send.
      received_.push_back(random_tensor({num_rows, kStageWidth}, 100 + i).set_requires_grad(true));
      gradients_.push_back(random_tensor({num_rows, kStageWidth}, 200 + i));
    }
  }

  // With `hinted`, each pass is named, and each backward's input asked for one slot ahead.
  void run(LayerInputs& inputs, const std::vector<Slot>& slots, bool hinted) {
    for (size_t k = 0; k < slots.size(); ++k) {
      if (hinted && k + 1 < slots.size() && slots[k + 1].pass == Pass::kBackward) {
        inputs.prefetch(name_of(slots[k + 1]));
      }
      if (slots[k].pass == Pass::kForward) {
        if (hinted) {
          inputs.begin_microbatch(name_of(slots[k]));
        }
        outputs_[name_of(slots[k])] = forward(inputs, slots[k]);
      } else {
        const auto found = outputs_.find(name_of(slots[k]));
        const at::Tensor output = std::move(found->second);
        outputs_.erase(found);
        output.backward(gradients_[slots[k].microbatch]);
      }
    }
  }

  static int64_t name_of(const Slot& slot) {
    return slot.chain * kMostMicrobatches + slot.microbatch;
  }
  at::Tensor run_layer(int64_t i, const at::Tensor& h) const {
    return h + at::mm(at::gelu(at::mm(h, parameters_[2 * i])), parameters_[2 * i + 1]);
  }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const at::Tensor& received(int64_t microbatch) const { return received_[microbatch]; }
  const at::Tensor& gradient(int64_t microbatch) const { return gradients_[microbatch]; }
  size_t input_bytes() const { return static_cast<size_t>(num_rows_) * kStageWidth * 4; }
  std::vector<at::Tensor> grads_on_cpu() const {
    std::vector<at::Tensor> grads;
    for (const auto* tensors : {&parameters_, &received_}) {
      for (const at::Tensor& each : *tensors) {
        grads.push_back(each.grad().defined() ? each.grad().cpu() : at::Tensor());
      }
    }
    return grads;
  }
  void clear_grads() {
    for (at::Tensor& parameter : parameters_) {
      parameter.mutable_grad() = at::Tensor();
    }
  }

  static constexpr int64_t kMostMicrobatches = 12;

 private:
  at::Tensor forward(LayerInputs& inputs, const Slot& slot) const {
    at::Tensor h = received_[slot.microbatch] * (slot.chain + 1);
    for (int64_t i = 0; i < kStageLayers; ++i) {
      const int64_t layer = slot.chain * kStageLayers + i;
      h = inputs.recompute([this, layer](const at::Tensor& in) { return run_layer(layer, in); }, h);
    }
    return h;
  }

  int64_t num_rows_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> received_;
  std::vector<at::Tensor> gradients_;
  std::map<int64_t, at::Tensor> outputs_;
};

inline LayerInputOptions stage_options(int64_t max_swapping_out, bool enabled = true) {
  LayerInputOptions options;
  options.enabled = enabled;
  options.num_layers = kStageLayers;
  options.max_swapping_out = max_swapping_out;
  return options;
}

inline SwapContextOptions timed() {
  SwapContextOptions options;
  options.timing = true;
  return options;
}

inline double device_ns() {
  sim::simulator().synchronize_device(0);
  return static_cast<double>(sim::simulator().stream_time(0, 0));
}

}  // namespace swapline::testing
