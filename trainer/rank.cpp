// One device's parts, made from the configuration.
#include "trainer/rank.h"

#include "swapline/optimizer/adam.h"

#include <optional>
#include <utility>

namespace swapline::trainer {
namespace {

std::unique_ptr<HostPool> make_staging(const Device& device) {
  if (device.torch_device().is_cpu()) {
    return nullptr;
  }
  HostPoolOptions options;
  options.slab_bytes = size_t{1} << 20;
  return std::make_unique<HostPool>(device.torch_device(), options);
}

std::shared_ptr<SwapContext> make_context(Device& device, std::shared_ptr<WaitMeter> waits) {
  if (device.torch_device().is_cpu()) {
    return nullptr;
  }
  SwapContextOptions options;
  options.order = std::move(waits);
  options.timing = true;
  options.host.budget_option =
      "--swap-layer-input.max-host-bytes for inputs, --optimizer.swap-optimizer for states";
  if (device.is_dry_run()) {
    options.host.read_limit = [] { return std::nullopt; };  // nothing is pinned in earnest
  }
  options.on_device_memory = [&device](const c10::Storage& storage, MemoryKind kind) {
    device.note_use(
        storage,
        kind == MemoryKind::kLayerInputs ? MemoryUse::kLayerInputs : MemoryUse::kOptimizerStates);
  };
  auto context = std::make_shared<SwapContext>(device.torch_device(), options);
  device.name_stream(context->copies().d2h_stream(), "swap out");
  device.name_stream(context->copies().h2d_stream(), "swap in");
  return context;
}

std::vector<AdamGroup> optimizer_groups(const OptimizerConfig& config,
                                        const std::vector<NamedParameter>& parameters) {
  AdamGroup group;
  for (const NamedParameter& parameter : parameters) {
    group.params.push_back(parameter.tensor);
  }
  group.settings.lr = config.lr;
  group.settings.beta1 = config.beta1;
  group.settings.beta2 = config.beta2;
  group.settings.eps = config.eps;
  group.settings.weight_decay = config.weight_decay;
  group.settings.decoupled = config.name == "AdamW";
  return {group};
}

AdamOptions optimizer_options(const OptimizerConfig& config, const Device& device) {
  AdamOptions options;
  options.placement = config.swap_optimizer ? StatePlacement::kSwap : StatePlacement::kDevice;
  options.swap_optimizer_times = config.swap_optimizer_times;
  options.swap_optimizer_arena_bytes = config.swap_optimizer_arena_bytes.value;
  options.link_bytes_per_s = device.link_bytes_per_s();
  options.copy_latency_s = device.copy_latency_s();
  return options;
}

}  // namespace

Rank::Rank(const Config& config, Device& device, LayerPasses passes)
    : device(device),
      staging(make_staging(device)),
      tokens(device, staging.get()),
      waits(std::make_shared<WaitMeter>(device)),
      context(make_context(device, waits)),
      layers(config, passes, context) {}

void Rank::make_optimizer(const Config& config, std::vector<NamedParameter> its_parameters) {
  parameters = std::move(its_parameters);
  optimizer = std::make_unique<Adam>(context,
                                     optimizer_groups(config.optimizer, parameters),
                                     optimizer_options(config.optimizer, device));
}

std::vector<at::Tensor> Rank::gradients() const {
  std::vector<at::Tensor> gradients;
  for (const NamedParameter& parameter : parameters) {
    gradients.push_back(parameter.tensor.grad());
  }
  return gradients;
}

int64_t Rank::num_pinned_allocations() const {
  return context == nullptr ? 0
                            : static_cast<int64_t>(context->host().stats().num_pinned_allocations);
}

}  // namespace swapline::trainer
