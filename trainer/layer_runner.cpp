// From the configuration's words to calls of LayerInputs::recompute.
#include "trainer/layer_runner.h"

#include <algorithm>
#include <utility>

namespace swapline::trainer {
namespace {

LayerInputOptions layer_input_options(const Config& config, int64_t num_blocks, bool keeps_last) {
  const SwapLayerInputConfig& swap = config.swap_layer_input;
  LayerInputOptions options;
  options.enabled = swap.enable;
  options.preserve_rng_state = false;  // the models draw no random numbers
  options.num_layers = num_blocks;
  options.keep_last = keeps_last ? swap.keep_last.value_or(kAuto) : 0;
  options.prefetch = swap.prefetch;
  options.max_swapping_out = swap.max_swapping_out.value_or(kAuto);
  options.min_bytes = swap.min_bytes.value;
  options.max_host_bytes = swap.max_host_bytes.value;
  return options;
}

// Runs one kind of part again in backward; their inputs stay on the device.
class SelectiveParts : public PartRunner {
 public:
  explicit SelectiveParts(LayerPart part) : part_(part), inputs_(nullptr, plain_options()) {}

  at::Tensor run(LayerPart part,
                 const PartFunction& function,
                 const std::vector<at::Tensor>& inputs) const override {
    if (part != part_) {
      return function(inputs);
    }
    const auto layer = [function](const at::Tensor& first, const std::vector<at::Tensor>& others) {
      std::vector<at::Tensor> all = {first};
      all.insert(all.end(), others.begin(), others.end());
      return std::vector<at::Tensor>{function(all)};
    };
    return inputs_.recompute(layer, inputs.front(), {inputs.begin() + 1, inputs.end()}).front();
  }

 private:
  static LayerInputOptions plain_options() {
    LayerInputOptions options;
    options.enabled = false;
    options.preserve_rng_state = false;
    return options;
  }

  LayerPart part_;
  mutable LayerInputs inputs_;
};

LayerPart part_named(const std::string& name) {
  return name == "norms" ? LayerPart::kNorm
         : name == "mlp" ? LayerPart::kFeedForward
                         : LayerPart::kAttentionCore;
}

int64_t num_blocks_of(int64_t num_layers, const ActivationCheckpointConfig& config) {
  const int64_t recomputed =
      config.first_layers == 0 ? num_layers : std::min(config.first_layers, num_layers);
  return (recomputed + config.layers_per_block - 1) / config.layers_per_block;
}

}  // namespace

LayerRunner::LayerRunner(const Config& config,
                         LayerPasses passes,
                         std::shared_ptr<SwapContext> context)
    : config_(config.activation_checkpoint), parts_(std::make_unique<PartRunner>()) {
  if (context == nullptr) {
    return;
  }
  if (config_.mode == "selective") {
    parts_ = std::make_unique<SelectiveParts>(part_named(config_.selective_part));
  } else if (config_.mode == "full") {
    // The last block's backward is the first of all, unless others come before it; then its input
    // may go like the rest.
    const bool ends_the_model =
        passes.is_whole_model &&
        (config_.first_layers == 0 || config_.first_layers >= passes.num_layers);
    inputs_ = std::make_unique<LayerInputs>(
        std::move(context),
        layer_input_options(config, num_blocks_of(passes.num_layers, config_), ends_the_model));
  }
}

LayerRunner::~LayerRunner() = default;

at::Tensor LayerRunner::run_block(std::span<const LayerPtr> layers,
                                  const at::Tensor& hidden_states) const {
  const auto block =
      [layers = std::vector<LayerPtr>(layers.begin(), layers.end())](const at::Tensor& input) {
        const PartRunner plain;
        at::Tensor hidden = input;
        for (const LayerPtr& layer : layers) {
          hidden = layer->forward(hidden, plain);
        }
        return hidden;
      };
  return inputs_->recompute(block, hidden_states);
}

at::Tensor LayerRunner::run(std::span<const LayerPtr> layers, at::Tensor hidden_states) const {
  size_t next = 0;
  if (inputs_ != nullptr) {
    const auto first_layers = static_cast<size_t>(config_.first_layers);
    const auto block_size = static_cast<size_t>(config_.layers_per_block);
    const size_t recomputed =
        first_layers == 0 ? layers.size() : std::min(first_layers, layers.size());
    while (next < recomputed) {
      const size_t end = std::min(next + block_size, recomputed);
      hidden_states = run_block(layers.subspan(next, end - next), hidden_states);
      next = end;
    }
  }
  for (; next < layers.size(); ++next) {
    hidden_states = layers[next]->forward(hidden_states, *parts_);
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
