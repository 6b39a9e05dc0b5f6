// One device's parts, made from the configuration.
#include "trainer/rank.h"

#include "trainer/rank_optimizer.h"
#include "trainer/virtual_optimizer.h"

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
      "--swap-layer-input.max-host-bytes for inputs, --optimizer.swap-optimizer and "
      "--optimizer.virtual-optimizer-size for states";
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

// Devices are numbered rank by rank, the lanes of one behind one another.
size_t virtual_bytes(const Config& config, const Device& device) {
  const ParallelismConfig& parallelism = config.parallelism;
  const auto sizes = virtual_optimizer_bytes(
      config.optimizer, static_cast<size_t>(parallelism.pipeline_parallel_degree));
  const c10::Device where = device.torch_device();
  const auto lanes = static_cast<size_t>(parallelism.expert_parallel_degree);
  return sizes.at(where.is_cpu() ? 0 : static_cast<size_t>(where.index()) / lanes);
}

AdamOptions optimizer_options(const OptimizerConfig& config,
                              const Device& device,
                              size_t virtual_bytes) {
  AdamOptions options;
  options.placement = config.swap_optimizer ? StatePlacement::kSwap : StatePlacement::kDevice;
  options.swap_optimizer_times = config.swap_optimizer_times;
  options.swap_optimizer_arena_bytes = config.swap_optimizer_arena_bytes.value;
  options.virtual_optimizer_bytes = virtual_bytes;
  options.swap_optimizer_fraction = config.swap_optimizer_fraction;
  if (config.state_dtype != "auto") {
    options.state_dtype = config.state_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  }
  options.master_weights = config.master_weights;
  options.kernel = config.implementation == "fused"     ? AdamKernel::kFused
                   : config.implementation == "foreach" ? AdamKernel::kPortable
                                                        : AdamKernel::kAuto;
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
  optimizer = swapline::trainer::make_optimizer(
      config.optimizer,
      parameters,
      context,
      optimizer_options(config.optimizer, device, virtual_bytes(config, device)));
  for (size_t group = 0; group < optimizer->num_groups(); ++group) {
    peak_lrs.push_back(optimizer->lr(group));
  }
}

void Rank::set_lr_factor(double factor) {
  for (size_t group = 0; group < peak_lrs.size(); ++group) {
    optimizer->set_lr(group, peak_lrs[group] * factor);
  }
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
