// What each device of a run has of its own.
#pragma once

#include "swapline/memory/host_pool.h"
#include "swapline/optimizer/optimizer.h"
#include "swapline/swap/swap_context.h"
#include "trainer/batch_loader.h"
#include "trainer/config.h"
#include "trainer/device.h"
#include "trainer/layer_runner.h"
#include "trainer/models/parameters.h"
#include "trainer/wait_meter.h"

#include <memory>
#include <vector>

namespace swapline::trainer {

struct Rank {
  // `device` must outlive the rank.
  Rank(const Config& config, Device& device, LayerPasses passes);

  // Once the device's parameters are there.
  void make_optimizer(const Config& config, std::vector<NamedParameter> its_parameters);
  // Each group's learning rate: this share of its peak.
  void set_lr_factor(double factor);
  std::vector<at::Tensor> gradients() const;
  int64_t num_pinned_allocations() const;

  Device& device;
  std::unique_ptr<HostPool> staging;  // small pinned buffers; nullptr on the CPU
  TokenCopies tokens;
  std::shared_ptr<WaitMeter> waits;
  std::shared_ptr<SwapContext> context;  // nullptr on the CPU
  LayerRunner layers;
  std::vector<NamedParameter> parameters;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<double> peak_lrs;  // of its groups
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

}  // namespace swapline::trainer
