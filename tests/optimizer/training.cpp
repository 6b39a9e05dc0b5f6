#include "tests/optimizer/training.h"

#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

namespace swapline::testing {
namespace {

at::Tensor random_on_host(at::IntArrayRef sizes, int seed, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kFloat)).to(dtype);
}

}  // namespace

std::shared_ptr<SwapContext> OptimizerTest::make_context(std::shared_ptr<StreamOrder> order,
                                                         bool timing) {
  SwapContextOptions options;
  options.host.slab_bytes = size_t{1} << 20;
  options.order = std::move(order);
  options.timing = timing;
  return std::make_shared<SwapContext>(sim::device(), options);
}

at::Tensor make_param(at::IntArrayRef sizes, int seed, at::ScalarType dtype) {
  return random_on_host(sizes, seed, dtype).to(sim::device()).requires_grad_(true);
}

std::vector<AdamGroup> odd_groups(const AdamSettings& settings) {
  AdamGroup first{{make_param({300, 200}, 1),
                   make_param({7, 5}, 2),
                   make_param({1000}, 3),
                   make_param({}, 4),
                   make_param({0, 4}, 5),
                   make_param({64}, 6)},
                  settings};
  first.params.push_back(first.params[2]);
  AdamGroup second{{make_param({129, 3}, 7),
                    make_param({501}, 8, at::kBFloat16),
                    make_param({33, 70}, 9, at::kBFloat16),
                    make_param({50, 40}, 10).detach().t().requires_grad_(true)},
                   settings};
  second.settings.lr = settings.lr * 0.3;
  second.settings.weight_decay = settings.weight_decay * 2;
  return {first, second};
}

std::vector<AdamGroup> plain_groups(const std::vector<std::vector<int64_t>>& sizes,
                                    const AdamSettings& settings,
                                    at::ScalarType dtype) {
  AdamGroup group;
  group.settings = settings;
  for (const auto& size : sizes) {
    group.params.push_back(make_param(size, static_cast<int>(group.params.size()), dtype));
  }
  return {group};
}

Gradients::Gradients(const std::vector<AdamGroup>& groups, int num_steps, bool with_gaps) {
  for (int step = 0; step < num_steps; ++step) {
    auto& grads = by_step_.emplace_back();
    for (const auto& group : groups) {
      for (const auto& param : group.params) {
        const auto number = static_cast<int>(grads.size());
        if (with_gaps && number % 2 == 1 && (step + number) % 5 == 0) {
          grads.emplace_back();
          continue;
        }
        auto grad = random_on_host(param.sizes(), 1000 * (step + 1) + number, param.scalar_type());
        // The transposed parameter gets a gradient laid out like it or not, in turn.
        if (!param.is_contiguous() && step % 2 == 0) {
          grad = at::empty_strided(param.sizes(), param.strides(), grad.options()).copy_(grad);
        }
        grads.push_back(grad.to(sim::device()));
      }
    }
  }
}

void Gradients::set(const std::vector<AdamGroup>& groups, int step) const {
  size_t number = 0;
  for (const auto& group : groups) {
    for (const auto& param : group.params) {
      param.mutable_grad() = by_step_[static_cast<size_t>(step)][number++];
    }
  }
}

std::map<std::string, at::Tensor> snapshot(Adam& adam, const std::vector<AdamGroup>& groups) {
  std::map<std::string, at::Tensor> tensors;
  int number = 0;
  for (const auto& group : groups) {
    for (const auto& param : group.params) {
      const std::string name = "param" + std::to_string(number++);
      tensors[name] = param.detach().cpu().clone();
      for (const auto& [key, state] : adam.state(param)) {
        tensors[name + "." + key] = state.cpu().clone();
      }
    }
  }
  return tensors;
}

void expect_equal(const std::map<std::string, at::Tensor>& actual,
                  const std::map<std::string, at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << name;
    EXPECT_TRUE(at::equal(found->second, tensor)) << name;
  }
}

}  // namespace swapline::testing
