// A DeepSeek-V3-like model small enough to be written out again by hand in a test.
#pragma once

#include "trainer/models/deepseek_v3.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace swapline::trainer {

inline std::unique_ptr<Device> cpu_device() {
  return std::move(make_torch_device("cpu").front());
}

inline Config config_of(const std::string& flavor) {
  Config config;
  config.model.name = "deepseek_v3";
  config.model.flavor = flavor;
  return config;
}

// The text of the UsageError that a call throws; empty when it throws none.
inline std::string usage_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

inline DeepseekV3Shape tiny_deepseek() {
  DeepseekV3Shape shape;
  shape.flavor = "tiny";
  shape.dim = 32;
  shape.num_layers = 3;
  shape.num_dense_layers = 1;
  shape.ffn_dim = 48;
  shape.vocab_size = 64;
  shape.attention = {
      .num_heads = 2, .q_rank = 24, .kv_rank = 16, .nope_dim = 8, .rope_dim = 4, .value_dim = 6};
  shape.moe.num_experts = 8;
  shape.moe.experts_per_token = 3;
  shape.moe.num_shared = 2;
  shape.moe.ffn_dim = 16;
  shape.moe.num_groups = 4;
  shape.moe.groups_per_token = 2;
  shape.moe.sigmoid_scores = true;
  shape.moe.normalized = true;
  shape.moe.route_scale = 2.5;
  return shape;
}

// A layer up to where its tokens leave, with the rows of each expert.
struct AttendedAtOnce : Attended {
  std::vector<int64_t> counts;
};

inline AttendedAtOnce attend(const ExpertLayer& layer,
                             const at::Tensor& hidden_states,
                             bool counts = true) {
  const Routed routed = layer.route(hidden_states, counts);
  AttendedAtOnce attended{layer.attend(routed), layer.known_counts(routed)};
  if (attended.counts.empty()) {
    const at::Tensor ends = routed.rows.ends.cpu();
    for (int64_t expert = 0; expert < ends.size(0); ++expert) {
      const int64_t begin = expert == 0 ? 0 : ends[expert - 1].item<int64_t>();
      attended.counts.push_back(ends[expert].item<int64_t>() - begin);
    }
  }
  return attended;
}

// On one device, with its parameters; sequences of `seq_len` tokens.
struct TinyDeepseek {
  Device& device;
  DeepseekV3Shape shape;
  ParameterFactory factory;
  DeepseekV3 model;

  TinyDeepseek(Device& device,
               DeepseekV3Shape made_shape,
               DeepseekV3Options options,
               c10::ScalarType dtype = at::kFloat)
      : device(device),
        shape(std::move(made_shape)),
        factory(dtype, 42),
        model(shape, options, Placement::all_on(device, shape.num_layers), factory) {}

  at::Tensor parameter(const std::string& name) const {
    for (const NamedParameter& parameter : factory.parameters()) {
      if (parameter.name == name) {
        return parameter.tensor;
      }
    }
    ADD_FAILURE() << "no parameter " << name;
    return {};
  }
  at::Tensor in_double(const std::string& name) const {
    return parameter(name).detach().cpu().to(at::kDouble);
  }
  int64_t num_parameters() const {
    int64_t total = 0;
    for (const NamedParameter& parameter : factory.parameters()) {
      total += parameter.tensor.numel();
    }
    return total;
  }

  const ExpertLayer& expert_layer(size_t index) const {
    return dynamic_cast<const ExpertLayer&>(*model.layers().at(index));
  }
  static at::Tensor run_layer(const LayerPtr& layer, at::Tensor hidden_states) {
    return layer->forward(hidden_states, PartRunner());
  }
  at::Tensor hidden_states(const at::Tensor& tokens) const {
    at::Tensor h = model.embed(tokens);
    for (const LayerPtr& layer : model.layers()) {
      h = run_layer(layer, h);
    }
    return h;
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) const {
    return model.loss(hidden_states(tokens), targets, &run_layer);
  }
};

}  // namespace swapline::trainer
