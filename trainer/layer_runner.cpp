// From the configuration's words to calls of LayerInputs::recompute.
#include "trainer/layer_runner.h"

#include <algorithm>
#include <utility>

namespace swapline::trainer {
namespace {

// `ends_the_model`: the last block's backward is the first of all. Else others come before it, and
// its input may go like the rest.
LayerInputOptions layer_input_options(const Config& config, int64_t num_blocks,
                                      bool ends_the_model) {
  const SwapLayerInputConfig& swap = config.swap_layer_input;
  LayerInputOptions options;
  options.enabled = swap.enable;
  options.preserve_rng_state = false;  // the models draw no random numbers
  options.num_layers = num_blocks;
  options.keep_last = ends_the_model ? swap.keep_last : 0;
  options.prefetch = swap.prefetch;
  options.max_swapping_out = swap.max_swapping_out.value_or(kAuto);
  options.min_bytes = swap.min_bytes.value;
  options.max_host_bytes = swap.max_host_bytes.value;
  return options;
}

LayerFunction block_of(std::vector<LayerFunction> layers) {
  if (layers.size() == 1) {
    return std::move(layers.front());
  }
  return [layers = std::move(layers)](const at::Tensor& input) {
    at::Tensor hidden_states = input;
    for (const LayerFunction& layer : layers) {
      hidden_states = layer(hidden_states);
    }
    return hidden_states;
  };
}

}  // namespace

LayerRunner::LayerRunner(const Config& config,
                         int64_t num_layers,
                         std::shared_ptr<SwapContext> context)
    : config_(config.activation_checkpoint), context_(std::move(context)) {
  if (config_.mode == "none" || context_ == nullptr) {
    return;
  }
  const int64_t recomputed =
      config_.first_layers == 0 ? num_layers : std::min(config_.first_layers, num_layers);
  const int64_t num_blocks = (recomputed + config_.layers_per_block - 1) / config_.layers_per_block;
  num_recomputed_layers_ = static_cast<size_t>(recomputed);
  inputs_ = std::make_unique<LayerInputs>(
      context_, layer_input_options(config, num_blocks, recomputed == num_layers));
}

at::Tensor LayerRunner::run(const std::vector<LayerFunction>& layers, at::Tensor hidden_states) {
  const auto block_size = static_cast<size_t>(config_.layers_per_block);
  size_t next = 0;
  while (next < num_recomputed_layers_) {
    const size_t end = std::min(next + block_size, num_recomputed_layers_);
    const auto first = layers.begin() + static_cast<std::ptrdiff_t>(next);
    const auto last = layers.begin() + static_cast<std::ptrdiff_t>(end);
    hidden_states = inputs_->recompute(block_of({first, last}), hidden_states);
    next = end;
  }
  for (; next < layers.size(); ++next) {
    hidden_states = layers[next](hidden_states);
  }
  if (context_ != nullptr) {
    // What a host that runs ahead still holds for copies of the last step goes before the logits,
    // the largest tensor of the step, take their place.
    context_->settle_all();
  }
  return hidden_states;
}

LayerInputSummary LayerRunner::summary(int64_t num_steps) const {
  LayerInputSummary summary;
  if (inputs_ == nullptr) {
    return summary;
  }
  const LayerInputStats stats = inputs_->stats();
  summary.enabled = inputs_->options().enabled;
  summary.swapped_bytes_per_step = static_cast<int64_t>(stats.bytes_out) / num_steps;
  summary.peak_resident_inputs = stats.peak_resident_inputs;
  summary.prefetch_hits = stats.num_prefetch_hits;
  summary.prefetch_misses = stats.num_prefetch_misses;
  summary.kept_on_device = stats.num_kept_on_device;
  return summary;
}

}  // namespace swapline::trainer
