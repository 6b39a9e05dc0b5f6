// Fused optimizer steps and multi-tensor operators: as on the CPU, one kernel each.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/sim_test.h"

namespace swapline::testing {
namespace {

class OptimizerOperatorsTest : public SimTest {};

struct AdamCase {
  const char* name;
  bool is_decoupled = true;
  bool amsgrad = false;
  bool maximize = false;
  bool has_tensor_lr = false;
  bool has_scale = false;
  at::ScalarType dtype = at::kFloat;
};

// Three steps over parameters of odd sizes; returns parameters, states and steps.
Tensors run_adam(const AdamCase& c, const Tensors& in) {
  const auto device = in[0].device();
  Tensors params;
  Tensors grads;
  Tensors first;
  Tensors second;
  Tensors largest;
  Tensors steps;
  for (const at::Tensor& tensor : in) {
    params.push_back(tensor.clone());
    grads.push_back(tensor.sin());
    first.push_back(at::zeros_like(tensor));
    second.push_back(at::zeros_like(tensor));
    if (c.amsgrad) {
      largest.push_back(at::zeros_like(tensor));
    }
    steps.push_back(at::zeros({}, at::TensorOptions().device(device)));
  }
  const auto scalar = [&](double value) {
    return at::full({}, value, at::TensorOptions().dtype(at::kFloat).device(device));
  };
  const std::optional<at::Tensor> scale = c.has_scale ? std::optional(scalar(4)) : std::nullopt;
  const std::optional<at::Tensor> found_inf = c.has_scale ? std::optional(scalar(0)) : std::nullopt;
  const auto step = [&](const auto& lr) {
    if (c.is_decoupled) {
      at::_fused_adamw_(params,
                        grads,
                        first,
                        second,
                        largest,
                        steps,
                        lr,
                        0.9,
                        0.999,
                        0.1,
                        1e-8,
                        c.amsgrad,
                        c.maximize,
                        scale,
                        found_inf);
    } else {
      at::_fused_adam_(params,
                       grads,
                       first,
                       second,
                       largest,
                       steps,
                       lr,
                       0.9,
                       0.999,
                       0.1,
                       1e-8,
                       c.amsgrad,
                       c.maximize,
                       scale,
                       found_inf);
    }
  };
  for (int i = 0; i < 3; ++i) {
    at::_foreach_add_(steps, 1);
    if (c.has_tensor_lr) {
      step(scalar(0.01));
    } else {
      step(0.01);
    }
  }
  Tensors all;
  for (const Tensors* list : {&params, &grads, &first, &second, &largest, &steps}) {
    all.insert(all.end(), list->begin(), list->end());
  }
  return all;
}

TEST_F(OptimizerOperatorsTest, FusedAdamAndAdamW) {
  const std::vector<AdamCase> cases = {
      {.name = "AdamW"},
      {.name = "Adam", .is_decoupled = false},
      {.name = "amsgrad", .amsgrad = true},
      {.name = "maximize", .maximize = true},
      {.name = "lr as a tensor", .has_tensor_lr = true},
      {.name = "Adam, lr as a tensor", .is_decoupled = false, .has_tensor_lr = true},
      {.name = "gradient scale", .has_scale = true},
      {.name = "everything",
       .amsgrad = true,
       .maximize = true,
       .has_tensor_lr = true,
       .has_scale = true},
      {.name = "bf16", .dtype = at::kBFloat16},
  };
  for (const AdamCase& c : cases) {
    const Tensors inputs = {on_cpu({7, 13}, 1, c.dtype),
                            on_cpu({129}, 2, c.dtype),
                            on_cpu({}, 3, c.dtype),
                            on_cpu({64, 3}, 4, c.dtype).t()};
    expect_same_as_cpu(c.name, inputs, [&](const Tensors& in) { return run_adam(c, in); });
  }
}

TEST_F(OptimizerOperatorsTest, FoundInfLeavesParametersAlone) {
  expect_same_as_cpu(
      "found_inf", {on_cpu({50}, 1), on_cpu({50}, 2)}, [](const Tensors& in) -> Tensors {
        const auto scalar = [&](double value) { return at::full({}, value, in[0].options()); };
        const Tensors first = {at::zeros_like(in[0])};
        const Tensors second = {at::zeros_like(in[0])};
        const Tensors steps = {scalar(1)};
        const at::Tensor before = in[0].clone();
        at::_fused_adamw_({in[0]},
                          {in[1]},
                          first,
                          second,
                          {},
                          steps,
                          0.1,
                          0.9,
                          0.99,
                          0.1,
                          1e-8,
                          false,
                          false,
                          scalar(1),
                          scalar(1));
        EXPECT_TRUE(at::equal(before.cpu(), in[0].cpu()));
        return {first[0], second[0], steps[0]};
      });
}

TEST_F(OptimizerOperatorsTest, MultiTensorOperators) {
  const Tensors inputs = {on_cpu({5, 3}, 1), on_cpu({7}, 2), on_cpu({}, 3), on_cpu({2, 2, 2}, 4)};
  expect_same_as_cpu("foreach", inputs, [](const Tensors& in) -> Tensors {
    Tensors all;
    const auto keep = [&all](const Tensors& list) {
      all.insert(all.end(), list.begin(), list.end());
    };
    const Tensors squares = at::_foreach_mul(in, in);
    keep(squares);
    keep(at::_foreach_add(in, squares, 0.5));
    keep(at::_foreach_add(in, 3));
    keep(at::_foreach_sub(in, squares));
    keep(at::_foreach_div(in, 7));
    keep(at::_foreach_mul(in, at::full({}, 2.5, in[0].options())));
    keep(at::_foreach_sqrt(squares));
    keep(at::_foreach_norm(in));
    keep(at::_foreach_norm(in, 1));
    keep(at::_foreach_lerp(in, squares, 0.3));
    keep(at::_foreach_addcdiv(in, in, at::_foreach_add(squares, 1), 0.5));
    keep(at::_foreach_addcmul(in, in, squares, 0.5));
    keep(at::_foreach_maximum(in, squares));
    keep(at::_foreach_neg(in));
    keep(at::_foreach_pow(squares, 2));
    return all;
  });
}

TEST_F(OptimizerOperatorsTest, MultiTensorOperatorsInPlace) {
  const Tensors inputs = {on_cpu({5, 3}, 1), on_cpu({7}, 2), on_cpu({}, 3)};
  expect_same_as_cpu("foreach_", inputs, [](const Tensors& in) -> Tensors {
    const Tensors others = {in[0].cos(), in[1].cos(), in[2].cos()};
    at::_foreach_add_(in, 1);
    at::_foreach_mul_(in, others);
    at::_foreach_addcmul_(in, others, others, 0.25);
    at::_foreach_addcdiv_(in, others, at::_foreach_add(at::_foreach_mul(others, others), 1), 0.5);
    at::_foreach_lerp_(in, others, 0.9);
    at::_foreach_clamp_min_(in, -1);
    const Tensors copies = {at::empty_like(in[0]), at::empty_like(in[1]), at::empty_like(in[2])};
    at::_foreach_copy_(copies, in);
    at::_foreach_sqrt_(at::_foreach_abs(in));
    at::_foreach_zero_(others);
    return {copies[0], copies[1], copies[2], others[0], others[1], others[2]};
  });
}

TEST_F(OptimizerOperatorsTest, OneKernelForAWholeList) {
  Tensors list;
  for (int i = 0; i < 20; ++i) {
    list.push_back(at::ones({10}, device()));
  }
  const int64_t before = sim().counters(0).num_ops;
  at::_foreach_mul_(list, 2);
  EXPECT_EQ(sim().counters(0).num_ops, before + 1);
}

TEST_F(OptimizerOperatorsTest, GradScalerOperators) {
  expect_same_as_cpu(
      "unscale", {on_cpu({9}, 1), on_cpu({4, 4}, 2)}, [](const Tensors& in) -> Tensors {
        at::Tensor found_inf = at::zeros({1}, in[0].options());
        at::_amp_foreach_non_finite_check_and_unscale_(
            in, found_inf, at::full({1}, 0.5, in[0].options()));
        at::Tensor scale = at::full({1}, 8.0, in[0].options());
        at::Tensor growth = at::zeros({1}, in[0].options().dtype(at::kInt));
        at::_amp_update_scale_(scale, growth, found_inf, 2.0, 0.5, 1);
        return {found_inf, scale, growth};
      });
}

}  // namespace
}  // namespace swapline::testing
