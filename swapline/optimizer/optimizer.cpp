// One face for the engines of all devices.
#include "swapline/optimizer/optimizer.h"

#include "swapline/optimizer/engine.h"

#include <algorithm>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace swapline {

using detail::OptimizerEngine;

Optimizer::Optimizer(const Contexts& contexts,
                     std::span<const std::vector<at::Tensor>> groups,
                     const OptimizerOptions& options,
                     const MakeRule& make_rule) {
  check(options);
  const auto add_engine = [&](std::shared_ptr<SwapContext> context, c10::Device device) {
    engines_.push_back(
        std::make_unique<OptimizerEngine>(std::move(context), device, options, make_rule(device)));
  };
  const auto has_engine = [&](c10::Device device) {
    return std::any_of(engines_.begin(), engines_.end(), [&](const auto& engine) {
      return engine->device() == device;
    });
  };
  for (const auto& context : contexts) {
    if (context != nullptr && !has_engine(context->device())) {
      add_engine(context, context->device());
    }
  }
  TORCH_CHECK(options.virtual_optimizer_bytes == 0 || !engines_.empty(),
              "virtual_optimizer_bytes needs a SwapContext of the parameters' device, as the "
              "states are in its host memory; set it to 0 for states on the device alone");
  if (options.placement == StatePlacement::kDevice && engines_.empty()) {
    for (const auto& group : groups) {
      for (const at::Tensor& tensor : group) {
        if (tensor.defined() && !has_engine(tensor.device())) {
          add_engine(nullptr, tensor.device());
        }
      }
    }
  }
  TORCH_CHECK(options.placement == StatePlacement::kDevice || !engines_.empty(),
              "StatePlacement::kSwap needs a SwapContext of the parameters' device");
  add_params(0, groups);
  const bool has_params = std::any_of(engines_.begin(), engines_.end(), [](const auto& engine) {
    return engine->params().size() > 0;
  });
  TORCH_CHECK(has_params, "the optimizer got no parameters");
}

Optimizer::~Optimizer() = default;

void Optimizer::add_params(size_t first, std::span<const std::vector<at::Tensor>> groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].size(); ++i) {
      const at::Tensor& tensor = groups[g][i];
      const bool is_known = tensor.defined() &&
                            std::any_of(engines_.begin(), engines_.end(), [&](const auto& engine) {
                              return engine->device() == tensor.device();
                            });
      std::string devices;
      for (const auto& engine : engines_) {
        devices += (devices.empty() ? "" : ", ") + engine->device().str();
      }
      TORCH_CHECK(is_known,
                  "parameter ",
                  i,
                  " of group ",
                  first + g,
                  tensor.defined() ? " is on " + tensor.device().str() : " is undefined",
                  ", the optimizer on ",
                  devices);
    }
  }
  std::vector<size_t> nums_before;
  for (const auto& engine : engines_) {
    nums_before.push_back(engine->params().size());
  }
  try {
    for (const auto& engine : engines_) {
      for (size_t g = 0; g < groups.size(); ++g) {
        engine->add_params(first + g, groups[g]);
      }
    }
    for (const auto& engine : engines_) {
      engine->reserve_states();
    }
  } catch (...) {
    for (size_t i = 0; i < engines_.size(); ++i) {
      engines_[i]->truncate(nums_before[i]);
    }
    throw;
  }
}

void Optimizer::step(const GradScaling& scaling) {
  run_hooks(/*before=*/true);
  update(scaling);
  run_hooks(/*before=*/false);
}

at::Tensor Optimizer::step(const Closure& closure, const GradScaling& scaling) {
  run_hooks(/*before=*/true);
  at::Tensor loss;
  {
    const c10::AutoGradMode with_grad(true);
    loss = closure();
  }
  update(scaling);
  run_hooks(/*before=*/false);
  return loss;
}

void Optimizer::update(const GradScaling& scaling) {
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  bool has_updated = false;
  try {
    for (const auto& engine : engines_) {
      engine->begin_step(scaling);
    }
    for (const auto& engine : engines_) {
      has_updated = engine->update() || has_updated;
    }
  } catch (const std::exception& error) {
    // What can be repeated on one device cannot once another has been updated.
    const std::string failure =
        has_updated ? "step() failed on one device after others had been updated. Make a new "
                      "optimizer from a checkpoint. The failure: " +
                          std::string(error.what())
                    : "";
    for (const auto& engine : engines_) {
      engine->abandon_step(failure);
    }
    TORCH_CHECK(failure.empty(), failure);
    throw;
  }
}

bool Optimizer::heeds_scaling() const {
  return std::all_of(engines_.begin(), engines_.end(), [](const auto& engine) {
    return engine->rule().heeds_scaling();
  });
}

void Optimizer::zero_grad(bool set_to_none) {
  const c10::NoGradGuard no_grad;
  for (const auto& engine : engines_) {
    if (engine->context() != nullptr) {
      engine->context()->settle_done();
    }
    for (size_t i = 0; i < engine->params().size(); ++i) {
      at::Tensor& grad = engine->params()[i].tensor.mutable_grad();
      if (!grad.defined()) {
        continue;
      }
      if (set_to_none) {
        grad.reset();
      } else {
        grad.detach_();
        grad.zero_();
      }
    }
  }
}

int64_t Optimizer::add_hook(bool is_before, StepHook hook) {
  hooks_.push_back({num_hooks_, is_before, std::move(hook)});
  return num_hooks_++;
}

int64_t Optimizer::add_step_pre_hook(StepHook hook) {
  return add_hook(/*is_before=*/true, std::move(hook));
}

int64_t Optimizer::add_step_post_hook(StepHook hook) {
  return add_hook(/*is_before=*/false, std::move(hook));
}

void Optimizer::remove_hook(int64_t number) {
  hooks_.remove_if([&](const Hook& hook) { return hook.number == number; });
}

// A copy of the list is called: a hook may remove itself, or others.
void Optimizer::run_hooks(bool before) {
  const std::list<Hook> hooks = hooks_;
  for (const Hook& hook : hooks) {
    if (hook.is_before == before) {
      hook.call(*this);
    }
  }
}

void Optimizer::prefetch() {
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const auto& engine : engines_) {
    engine->check_usable({});
    engine->prefetch();
  }
}

void Optimizer::drain() {
  const c10::NoGradGuard no_grad;
  for (const auto& engine : engines_) {
    engine->drain();
  }
}

std::vector<at::Tensor> Optimizer::params(size_t group) const {
  std::vector<at::Tensor> tensors;
  for (const auto& engine : engines_) {
    for (size_t i = 0; i < engine->params().size(); ++i) {
      if (engine->params()[i].group == group) {
        tensors.push_back(engine->params()[i].tensor);
      }
    }
  }
  return tensors;
}

OptimizerEngine& Optimizer::engine_of(const at::Tensor& param) const {
  for (const auto& engine : engines_) {
    if (engine->params().contains(param)) {
      return *engine;
    }
  }
  TORCH_CHECK(false, "the tensor is not a parameter of this optimizer");
}

std::map<std::string, at::Tensor> Optimizer::state(const at::Tensor& param) {
  OptimizerEngine& engine = engine_of(param);
  const c10::NoGradGuard no_grad;
  engine.drain();
  const size_t index = engine.params().index_of(param);
  auto states = engine.state(index);
  if (engine.params()[index].has_state && engine.rule().has_step(index)) {
    states["step"] = engine.steps().tensor(index);
  }
  return states;
}

std::map<std::string, at::Tensor> Optimizer::make_state(const at::Tensor& param) {
  OptimizerEngine& engine = engine_of(param);
  {
    const c10::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    engine.make_state(engine.params().index_of(param));
  }
  return state(param);
}

void Optimizer::clear_state(const at::Tensor& param) {
  OptimizerEngine& engine = engine_of(param);
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  engine.drain();
  engine.clear_state(engine.params().index_of(param));
}

std::vector<std::string> Optimizer::state_names(const at::Tensor& param) const {
  OptimizerEngine& engine = engine_of(param);
  const size_t index = engine.params().index_of(param);
  std::vector<std::string> names;
  if (engine.rule().has_step(index)) {
    names.emplace_back("step");
  }
  for (const detail::StateRow& row : engine.rule().rows(index)) {
    names.push_back(row.name);
  }
  return names;
}

OptimizerStats Optimizer::stats() const {
  OptimizerStats stats;
  for (const auto& engine : engines_) {
    stats.num_launches += engine->rule().num_launches();
    stats.state_bytes += engine->state_bytes();
    const detail::SwapPipeline* const pipeline = std::as_const(*engine).pipeline();
    if (pipeline == nullptr) {
      continue;
    }
    const size_t slot_bytes = pipeline->slot_bytes();
    stats.num_chunks += static_cast<int64_t>(pipeline->chunks().size());
    stats.num_slots = static_cast<int64_t>(pipeline->num_slots());
    stats.slot_bytes = std::max(stats.slot_bytes, slot_bytes);
    stats.arena_bytes += pipeline->arena_bytes();
    stats.scratch_bytes += engine->planned_scratch_bytes();
    stats.kept_bytes += pipeline->kept_bytes();
    stats.mapped_bytes += pipeline->mapped_bytes();
    stats.num_copies_in += pipeline->num_copies_in();
    stats.num_copies_out += pipeline->num_copies_out();
    stats.num_shortages += pipeline->slots().num_shortages();
  }
  return stats;
}

size_t Optimizer::device_state_bytes() const {
  size_t bytes = 0;
  for (const auto& engine : engines_) {
    const detail::SwapPipeline* const pipeline = std::as_const(*engine).pipeline();
    bytes += engine->resident().bytes();
    if (pipeline != nullptr) {
      engine->context()->settle_done();
      bytes += pipeline->held_bytes();
    }
  }
  return bytes;
}

std::vector<OptimizerStepTimes> Optimizer::take_step_times() {
  for (const auto& engine : engines_) {
    if (engine->pipeline() != nullptr && engine->params().size() > 0) {
      return engine->pipeline()->timer().take();
    }
  }
  return {};
}

}  // namespace swapline
