// Swapped momentum gives the bits of resident momentum, and that the bits of torch's operators.
#include "tests/optimizer/muon_reference.h"
#include "tests/optimizer/muon_training.h"
#include "tests/optimizer/reference.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>

namespace swapline::testing {
namespace {

constexpr int kNumSteps = 20;

using Snapshot = std::map<std::string, at::Tensor>;

struct Variant {
  std::string name;
  MuonSettings settings;
  at::ScalarType dtype = at::kFloat;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (int bits = 0; bits < 4; ++bits) {
      Variant variant;
      variant.dtype = dtype;
      variant.settings.lr = 0.02;
      variant.settings.nesterov = (bits & 1) == 0;
      variant.settings.lr_rule =
          (bits & 2) == 0 ? MuonLrRule::kOriginal : MuonLrRule::kMatchRmsAdamw;
      variant.settings.hybrid_ns = bits == 3;
      variant.settings.ns_steps = bits == 3 ? 10 : 5;
      variant.name = std::string(c10::toString(dtype)) + " variant " + std::to_string(bits);
      all.push_back(variant);
    }
  }
  return all;
}

AdamSettings adam_settings() {
  AdamSettings settings;
  settings.lr = 0.01;
  settings.weight_decay = 0.1;
  return settings;
}

double lr_factor(int step) {
  return step % 3 == 0 ? 1.5 : 0.8;
}

class MuonBitsTest : public OptimizerTest {
 protected:
  static Snapshot train(const Variant& variant, const AdamOptions& options, bool prefetch) {
    const MuonGroup matrices = odd_matrices(variant.settings, variant.dtype);
    const AdamGroup others = other_params(adam_settings(), variant.dtype);
    const auto params = params_of(matrices, others);
    const Gradients gradients(as_groups(params), kNumSteps, /*with_gaps=*/true);
    Muon muon(options.placement == StatePlacement::kSwap ? make_context() : nullptr,
              {matrices},
              {others},
              options);
    for (int step = 0; step < kNumSteps; ++step) {
      gradients.set(as_groups(params), step);
      if (prefetch && step % 2 == 1) {
        muon.prefetch();
      }
      for (size_t group = 0; group < muon.num_groups(); ++group) {
        muon.set_lr(group, muon.lr(group) * lr_factor(step));
      }
      muon.step();
    }
    return snapshot(muon, params);
  }

  static Snapshot train_reference(const Variant& variant) {
    const MuonGroup matrices = odd_matrices(variant.settings, variant.dtype);
    const AdamGroup others = other_params(adam_settings(), variant.dtype);
    const Gradients gradients(as_groups(params_of(matrices, others)), kNumSteps, true);
    MuonReference muon(matrices);
    Reference adam({others}, {});
    for (int step = 0; step < kNumSteps; ++step) {
      gradients.set(as_groups(params_of(matrices, others)), step);
      muon.settings().lr *= lr_factor(step);
      adam.settings(0).lr *= lr_factor(step);
      muon.step();
      adam.step();
    }
    Snapshot all = muon.snapshot();
    for (const auto& [name, tensor] : adam.snapshot()) {
      const size_t dot = std::min(name.find('.'), name.size());
      const size_t number = std::stoul(name.substr(5, dot - 5)) + matrices.params.size();
      all["param" + std::to_string(number) + name.substr(dot)] = tensor;
    }
    return all;
  }
};

TEST_F(MuonBitsTest, ResidentMomentumGivesTheBitsOfTorchsOperators) {
  AdamOptions options;
  options.placement = StatePlacement::kDevice;
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    expect_equal(train(variant, options, false), train_reference(variant));
  }
}

struct Machine {
  bool late_copies;
  int64_t times;
  double fraction = 1;
  double copy_jitter = 0;
  size_t virtual_bytes = 0;
};

class SwappedMuonBitsTest : public MuonBitsTest, public ::testing::WithParamInterface<Machine> {};

TEST_P(SwappedMuonBitsTest, SwappedMomentumGivesTheBitsOfResidentMomentum) {
  const Machine& machine = GetParam();
  size_t number = 0;
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    use_machine();
    const Snapshot expected = train_reference(variant);
    AdamOptions options;
    options.swap_optimizer_times = machine.times;
    options.swap_optimizer_fraction = machine.fraction;
    options.virtual_optimizer_bytes = machine.virtual_bytes;
    use_machine({.late_copies = machine.late_copies,
                 .copy_slowdown = 1 + machine.copy_jitter,
                 .copy_jitter = machine.copy_jitter,
                 .seed = number});
    expect_equal(train(variant, options, /*prefetch=*/number++ % 2 == 0), expected);
    EXPECT_EQ(sim().num_races(), 0) << first_race();
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizer,
                         SwappedMuonBitsTest,
                         ::testing::Values(Machine{true, 1},
                                           Machine{true, 16},
                                           Machine{false, 4},
                                           Machine{true, 4, 0.5},
                                           Machine{true, 8, 1, 5.0},
                                           Machine{true, 4, 0.8, 0, 70001}),
                         [](const auto& info) { return "Machine" + std::to_string(info.index); });

// Enough experts for several batches: a parameter of many chunks, cut between its matrices.
TEST_F(MuonBitsTest, ManyExpertsArePartedBetweenBatches) {
  constexpr int64_t kNumExperts = 2500;
  Snapshot results[2];
  for (const bool swaps : {false, true}) {
    use_machine({.late_copies = swaps, .capacity_bytes = size_t{1} << 30});
    MuonGroup group;
    group.settings.ns_steps = 1;
    group.params = {make_param({kNumExperts, 64, 64}, 1, at::kBFloat16)};
    const Gradients gradients(as_groups(group.params), 2, false);
    AdamOptions options;
    options.placement = swaps ? StatePlacement::kSwap : StatePlacement::kDevice;
    Muon muon(swaps ? make_context() : nullptr, {group}, {}, options);
    for (int step = 0; step < 2; ++step) {
      gradients.set(as_groups(group.params), step);
      muon.step();
    }
    if (swaps) {
      EXPECT_EQ(muon.stats().num_chunks, 2);
      EXPECT_EQ(muon.stats().slot_bytes, size_t{1} << 24) << "2^23 elements of bfloat16";
    }
    EXPECT_EQ(muon.stats().num_launches, 2 * 2);
    results[swaps ? 1 : 0] = snapshot(muon, group.params);
  }
  expect_equal(results[1], results[0]);
}

// What the update is for: its singular values are near 1, and with hybrid_ns very near.
TEST_F(MuonBitsTest, TheUpdateIsNearlyOrthogonal) {
  for (const bool is_hybrid : {false, true}) {
    MuonGroup group;
    group.settings.lr = 1;
    group.settings.weight_decay = 1;  // leaves nothing of the parameter but the update
    group.settings.hybrid_ns = is_hybrid;
    group.settings.ns_steps = is_hybrid ? 10 : 5;
    group.params = {make_param({24, 64}, 1), make_param({3, 24, 64}, 2)};
    Muon muon(make_context(), {group});
    const Gradients gradients(as_groups(group.params), 1, false);
    gradients.set(as_groups(group.params), 0);
    muon.step();
    for (const at::Tensor& param : group.params) {
      const at::Tensor updates = param.detach().cpu().view({-1, 24, 64});
      for (int64_t i = 0; i < updates.size(0); ++i) {
        const at::Tensor product = at::mm(updates[i], updates[i].t());
        const double most = product.sub(at::eye(24)).abs().max().item<double>();
        EXPECT_LT(most, is_hybrid ? 0.03 : 0.6);
        EXPECT_GT(most, is_hybrid ? 0 : 0.03);
      }
    }
  }
}

TEST_F(MuonBitsTest, GroupsThatComeLaterAreUpdatedToo) {
  const MuonGroup first = {{make_param({32, 16}, 1)}, {}};
  const AdamGroup second = {{make_param({40}, 2)}, {}};
  MuonGroup third = {{make_param({16, 24}, 3)}, {}};
  third.settings.lr = 0.5;
  Muon muon(make_context(), {first});
  muon.add_group(second);
  muon.add_group(third);
  EXPECT_THROW(muon.add_group(MuonGroup{{make_param({8}, 4)}, {}}), c10::Error);
  ASSERT_EQ(muon.num_groups(), 3u);
  EXPECT_FALSE(muon.has_matrices(1));
  EXPECT_EQ(muon.lr(2), 0.5);
  const std::vector<at::Tensor> params = {first.params[0], second.params[0], third.params[0]};
  const Gradients gradients(as_groups(params), 2, false);
  MuonReference first_reference(first);
  MuonReference third_reference(third);
  Reference second_reference({second}, {});
  for (int step = 0; step < 2; ++step) {
    gradients.set(as_groups(params), step);
    muon.step();
    first_reference.step();
    second_reference.step();
    third_reference.step();
  }
  expect_equal(snapshot(muon, first.params), first_reference.snapshot());
  expect_equal(snapshot(muon, second.params), second_reference.snapshot());
  expect_equal(snapshot(muon, third.params), third_reference.snapshot());
}

TEST_F(MuonBitsTest, AMatrixHasOneStateAndNoStep) {
  const MuonGroup group = {{make_param({32, 16}, 1)}, {}};
  Muon muon(make_context(), {group});
  EXPECT_TRUE(muon.state(group.params[0]).empty());
  const auto made = muon.make_state(group.params[0]);
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(made.at("momentum_buffer").sizes(), group.params[0].sizes());
  EXPECT_EQ(muon.stats().state_bytes, size_t{32} * 16 * 4);
}

}  // namespace
}  // namespace swapline::testing
