// States in mapped host memory: the same bits, no copies, no device memory.
#include "tests/optimizer/reference.h"
#include "tests/optimizer/training.h"
#include "tests/support/errors.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/library.h>

namespace swapline::testing {
namespace {

constexpr size_t kAll = SIZE_MAX;
constexpr int kNumSteps = 20;

AdamOptions with_virtual(size_t bytes, StatePlacement placement = StatePlacement::kSwap) {
  AdamOptions options;
  options.placement = placement;
  options.virtual_optimizer_bytes = bytes;
  options.swap_optimizer_times = 4;
  return options;
}

struct Case {
  std::string name;
  std::optional<at::ScalarType> state_dtype;
  bool master_weights = false;
  bool amsgrad = false;
  AdamKernel kernel = AdamKernel::kAuto;
};

std::vector<Case> cases() {
  return {{"Plain", std::nullopt},
          {"Amsgrad", std::nullopt, false, true},
          {"Bf16Moments", at::kBFloat16},
          {"DoubleMoments", at::kDouble},
          {"Masters", std::nullopt, true},
          {"AmsgradMastersAndBf16Moments", at::kBFloat16, true, true},
          {"Portable", std::nullopt, false, false, AdamKernel::kPortable},
          {"PortableMastersAndBf16Moments", at::kBFloat16, true, false, AdamKernel::kPortable}};
}

class VirtualBitsTest : public OptimizerTest, public ::testing::WithParamInterface<Case> {};

TEST_P(VirtualBitsTest, TheBitsAreThoseOfTheReferenceWhereverTheRestIs) {
  AdamSettings settings;
  settings.lr = 0.01;
  settings.weight_decay = 0.1;
  settings.amsgrad = GetParam().amsgrad;
  struct Rest {
    StatePlacement placement;
    double fraction;
  };
  for (const Rest& rest : {Rest{StatePlacement::kSwap, 1},
                           Rest{StatePlacement::kSwap, 0.5},
                           Rest{StatePlacement::kDevice, 1}}) {
    for (const size_t bytes : {size_t{2000}, size_t{100'000}, size_t{300'001}, kAll}) {
      for (const bool late : {false, true}) {
        SCOPED_TRACE(std::to_string(bytes) + (late ? ", late" : ""));
        use_machine({.late_copies = late});
        AdamOptions options = with_virtual(bytes, rest.placement);
        options.swap_optimizer_fraction = rest.fraction;
        options.state_dtype = GetParam().state_dtype;
        options.master_weights = GetParam().master_weights;
        options.kernel = GetParam().kernel;
        const auto groups = odd_groups(settings);
        const Gradients gradients(groups, kNumSteps, /*with_gaps=*/true);
        Reference reference(groups, options);
        Adam adam(make_context(), groups, options);
        for (int step = 0; step < kNumSteps; ++step) {
          gradients.set(groups, step);
          if (step % 3 == 1) {
            adam.prefetch();
          }
          adam.step();
          reference.step();
        }
        EXPECT_GT(adam.stats().mapped_bytes, 0u);
        expect_equal(snapshot(adam, groups), reference.snapshot());
        EXPECT_EQ(sim().num_races(), 0) << first_race();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizer,
                         VirtualBitsTest,
                         ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

class VirtualTest : public OptimizerTest {
 protected:
  static size_t peak() { return sim().memory_stats(0).peak_allocated_bytes; }
  static size_t allocated() { return sim().memory_stats(0).allocated_bytes; }
  // Steps once with new gradients and returns what the device's kernels moved over the link.
  static sim::Counters moved_by_step(Adam& adam, const std::vector<AdamGroup>& groups) {
    const Gradients gradients(groups, 1, false);
    const sim::Counters before = sim().counters(0);
    gradients.set(groups, 0);
    adam.step();
    sim::Counters moved = sim().counters(0);
    adam.drain();
    moved.mapped_bytes_in -= before.mapped_bytes_in;
    moved.mapped_bytes_out -= before.mapped_bytes_out;
    moved.bytes_in -= before.bytes_in;
    moved.bytes_out -= before.bytes_out;
    moved.num_copies_in -= before.num_copies_in;
    moved.num_copies_out -= before.num_copies_out;
    return moved;
  }
};

TEST_F(VirtualTest, MappedStatesTakeNoCopiesNoSlotsAndNoDeviceMemory) {
  for (const auto placement : {StatePlacement::kSwap, StatePlacement::kDevice}) {
    use_machine();
    const auto groups = plain_groups({{700, 300}, {5000}, {64}});
    const Gradients gradients(groups, 3, false);
    const auto context = make_context();
    Adam adam(context, groups, with_virtual(kAll, placement));
    const size_t before = allocated();
    sim().reset_peak_memory(0);
    for (int step = 0; step < 3; ++step) {
      gradients.set(groups, step);
      adam.prefetch();
      adam.step();
      EXPECT_EQ(adam.device_state_bytes(), 0u);
    }
    EXPECT_EQ(peak() - before, 512u) << "the step's number";
    const auto stats = adam.stats();
    EXPECT_EQ(stats.mapped_bytes, stats.state_bytes);
    EXPECT_EQ(stats.state_bytes, (700U * 300 + 5000 + 64) * 8);
    EXPECT_EQ(stats.arena_bytes, 0u);
    EXPECT_EQ(stats.num_copies_in + stats.num_copies_out, 0);
    EXPECT_EQ(stats.num_launches, 3 * stats.num_chunks);
    EXPECT_LE(stats.num_chunks, 2) << "one for each block of host memory";
    adam.drain();
  }
}

TEST_F(VirtualTest, BytesAreMetToSixtyFourElements) {
  const std::vector<std::pair<size_t, size_t>> cases = {
      {0, 0}, {511, 0}, {512, 512}, {5631, 5120}, {7999, 7680}, {8000, 8000}, {kAll, 8000}};
  for (const auto placement : {StatePlacement::kSwap, StatePlacement::kDevice}) {
    for (const auto& [asked, mapped] : cases) {
      SCOPED_TRACE(asked);
      use_machine();
      const auto groups = plain_groups({{1000}});
      const auto context = make_context();
      Adam adam(context, groups, with_virtual(asked, placement));
      EXPECT_EQ(adam.stats().mapped_bytes, mapped);
      const sim::Counters moved = moved_by_step(adam, groups);
      EXPECT_EQ(static_cast<size_t>(moved.mapped_bytes_in), mapped);
      EXPECT_EQ(static_cast<size_t>(moved.mapped_bytes_out), mapped);
    }
  }
}

TEST_F(VirtualTest, WhatGoesBeyondIsSwappedWithOneCopyAStateAndChunk) {
  const auto groups = plain_groups({{700, 300}, {5000}});
  const auto context = make_context();
  Adam adam(context, groups, with_virtual(1'000'000));
  const auto stats = adam.stats();
  EXPECT_GT(stats.arena_bytes, 0u);
  const sim::Counters moved = moved_by_step(adam, groups);
  EXPECT_EQ(static_cast<size_t>(moved.mapped_bytes_in), stats.mapped_bytes);
  const auto swapped = static_cast<size_t>(moved.bytes_out);
  EXPECT_GE(swapped, stats.state_bytes - stats.mapped_bytes);
  EXPECT_LE(swapped, stats.state_bytes - stats.mapped_bytes + 4096) << "4096: padding of the rows";
  EXPECT_EQ(moved.num_copies_in, moved.num_copies_out);
  EXPECT_EQ(adam.device_state_bytes(), 0u);
}

TEST_F(VirtualTest, WhatGoesBeyondStaysOnTheDeviceWithoutSwap) {
  const auto groups = plain_groups({{700, 300}, {200, 100}, {5000}});
  const auto context = make_context();
  Adam adam(context, groups, with_virtual(700 * 300 * 8 + 1000, StatePlacement::kDevice));
  moved_by_step(adam, groups);
  const auto stats = adam.stats();
  EXPECT_EQ(stats.mapped_bytes, 700U * 300 * 8 + 512);
  EXPECT_EQ(stats.state_bytes, (700U * 300 + 200 * 100 + 5000) * 8);
  EXPECT_LE(context->host().stats().requested_bytes, (700U * 300 + 200 * 100) * 8 + 4096)
      << "no host memory for what is on the device, but for the tensor that is cut";
  EXPECT_TRUE(adam.state(groups[0].params[0]).at("exp_avg").device().is_cpu());
  EXPECT_TRUE(adam.state(groups[0].params[1]).at("exp_avg").device().is_cpu());
  EXPECT_EQ(adam.state(groups[0].params[2]).at("exp_avg").device(), device());
  EXPECT_EQ(stats.kept_bytes, 200U * 100 * 8 - 512 + 256) << "the rest of the tensor that is cut";
  EXPECT_EQ(moved_by_step(adam, groups).num_copies_out, 0);
}

TEST_F(VirtualTest, AStateEditedBetweenStepsTakesEffect) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool maps : {false, true}) {
    const auto groups = plain_groups({{300, 200}, {1000}});
    const Gradients gradients(groups, 3, false);
    Adam adam(make_context(), groups, with_virtual(maps ? kAll : 0));
    for (int step = 0; step < 3; ++step) {
      gradients.set(groups, step);
      adam.step();
      auto state = adam.state(groups[0].params[1]).at("exp_avg");
      state.mul_(0.5);
      sim().host_access("edit", state.const_data_ptr(), state.nbytes(), true);
    }
    results[maps ? 1 : 0] = snapshot(adam, groups);
  }
  expect_equal(results[1], results[0]);
}

// The host's own wait, which no StreamOrder makes: it is left out by reading without asking for it.
TEST_F(VirtualTest, HostStatesAreWholeAfterDrainAndNotBefore) {
  const auto groups = plain_groups({{300, 200}});
  const Gradients gradients(groups, 2, false);
  Adam adam(make_context(), groups, with_virtual(kAll));
  gradients.set(groups, 0);
  adam.step();
  const at::Tensor state = adam.state(groups[0].params[0]).at("exp_avg");
  const auto read = [&] {
    sim().host_access("host reads", state.const_data_ptr(), state.nbytes(), false);
  };
  read();
  EXPECT_EQ(sim().num_races(), 0) << first_race();
  adam.step();
  read();
  EXPECT_GT(sim().num_races(), 0);
  sim().clear_races();
  adam.step();
  adam.drain();
  read();
  EXPECT_EQ(sim().num_races(), 0) << first_race();
}

TEST_F(VirtualTest, AnOptimizerThatGoesWhileItsUpdateRunsWaitsForIt) {
  const auto groups = plain_groups({{300, 200}});
  const Gradients gradients(groups, 1, false);
  auto context = make_context();
  {
    Adam adam(context, groups, with_virtual(kAll));
    gradients.set(groups, 0);
    adam.step();
  }
  context.reset();  // the pinned memory is freed
  EXPECT_EQ(sim().num_races(), 0) << first_race();
}

TEST_F(VirtualTest, GroupsAndParametersThatComeLaterShareTheBytes) {
  for (const auto placement : {StatePlacement::kSwap, StatePlacement::kDevice}) {
    std::map<std::string, at::Tensor> results[2];
    for (const bool maps : {false, true}) {
      use_machine();
      auto groups = plain_groups({{100, 64}});
      const auto later = plain_groups({{50, 64}, {30, 64}});
      Adam adam(make_context(), groups, with_virtual(maps ? 8 * 64 * 120 : 0, placement));
      EXPECT_EQ(adam.stats().mapped_bytes, maps ? 8U * 64 * 100 : 0);
      Gradients(groups, 1, false).set(groups, 0);
      adam.step();
      adam.add_group(later[0]);
      groups.push_back(later[0]);
      EXPECT_EQ(adam.stats().mapped_bytes, maps ? 8U * 64 * 120 : 0);
      const Gradients gradients(groups, 3, false);
      for (int step = 0; step < 3; ++step) {
        gradients.set(groups, step);
        adam.step();
      }
      results[maps ? 1 : 0] = snapshot(adam, groups);
    }
    expect_equal(results[1], results[0]);
  }
}

// Each allocation and each copy of a step fails in turn: nothing is lost, or it is said.
TEST_F(VirtualTest, AFailureInAMixedStepIsCleanAndTheStepCanBeRepeated) {
  const auto train = [&](int64_t failing_copy, int64_t failing_allocation, bool& has_thrown) {
    use_machine();
    const auto groups = plain_groups({{300, 200}, {1000}});
    const Gradients gradients(groups, 2, false);
    AdamOptions options = with_virtual(300'000);
    options.state_dtype = at::kBFloat16;
    options.virtual_optimizer_bytes = 150'000;
    Adam adam(make_context(), groups, options);
    bool is_lost = false;
    for (int step = 0; step < 2 && !is_lost; ++step) {
      gradients.set(groups, step);
      if (step == 1) {
        sim::Faults faults;
        faults.fail_copy = failing_copy;
        faults.fail_device_allocation = failing_allocation;
        set_faults(faults);
      }
      try {
        adam.step();
      } catch (const std::exception&) {
        has_thrown = true;
        set_faults({});
        EXPECT_EQ(adam.device_state_bytes(), 0u);
        is_lost = !message_of([&] { adam.step(); }).empty();
      }
    }
    set_faults({});
    return is_lost ? std::map<std::string, at::Tensor>() : snapshot(adam, groups);
  };
  bool has_thrown = false;
  const auto expected = train(-1, -1, has_thrown);
  ASSERT_FALSE(has_thrown);
  int num_repeated = 0;
  for (int64_t k = 0; k < 12; ++k) {
    for (const bool in_copy : {false, true}) {
      SCOPED_TRACE(std::to_string(k) + (in_copy ? ", copy" : ", allocation"));
      has_thrown = false;
      const auto result = train(in_copy ? k : -1, in_copy ? -1 : k, has_thrown);
      if (!result.empty()) {
        expect_equal(result, expected);
        num_repeated += has_thrown ? 1 : 0;
      }
      EXPECT_EQ(sim().num_races(), 0) << first_race();
    }
  }
  EXPECT_GT(num_repeated, 0);
}

// The launches before the one that fails still run when the error comes out; states are read only
// when they are done.
TEST_F(VirtualTest, AnUpdateThatFailsHalfwayIsWaitedFor) {
  const auto groups = plain_groups({{300, 200}});
  AdamOptions options = with_virtual(kAll);
  options.kernel = AdamKernel::kPortable;
  Adam adam(make_context(), groups, options);
  const Gradients gradients(groups, 2, false);
  gradients.set(groups, 0);
  adam.step();
  adam.drain();
  gradients.set(groups, 1);
  sim::Faults faults;
  faults.fail_launch = 4;
  set_faults(faults);
  EXPECT_NE(message_of([&] { adam.step(); }).find("step() failed after"), std::string::npos);
  set_faults({});
  for (const auto& [name, state] : adam.state(groups[0].params[0])) {
    state.clone();
  }
  EXPECT_EQ(sim().num_races(), 0) << first_race();
}

TEST_F(VirtualTest, WithoutAContextItIsRefused) {
  const std::string text = message_of([] {
    Adam adam(std::shared_ptr<SwapContext>(),
              plain_groups({{8}}),
              with_virtual(kAll, StatePlacement::kDevice));
  });
  EXPECT_NE(text.find("virtual_optimizer_bytes needs a SwapContext"), std::string::npos) << text;
}

TEST_F(VirtualTest, OnADeviceThatCannotAddressHostMemoryTheStatesAreSwapped) {
  // Stands for Ascend's: a device with swapped memory instead of mapped.
  torch::Library npu(torch::Library::DEF, "npu", std::nullopt, __FILE__, __LINE__);
  npu.def("empty_with_swapped_memory(int[] size) -> Tensor");
  for (const auto placement : {StatePlacement::kSwap, StatePlacement::kDevice}) {
    use_machine();
    const auto groups = plain_groups({{700, 300}, {5000}});
    ::testing::internal::CaptureStderr();
    Adam adam(make_context(), groups, with_virtual(1'000'000, placement));
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("cannot address host memory, so these states are swapped"),
              std::string::npos)
        << said;
    EXPECT_EQ(adam.stats().mapped_bytes, 0u);
    const sim::Counters moved = moved_by_step(adam, groups);
    EXPECT_EQ(moved.mapped_bytes_in, 0);
    const int64_t least = placement == StatePlacement::kSwap ? 215'000 * 8 : 1'000'000;
    EXPECT_GE(moved.bytes_out, least);
    const auto resident = adam.stats().kept_bytes;
    EXPECT_EQ(resident > 0, placement == StatePlacement::kDevice);
  }
}

}  // namespace
}  // namespace swapline::testing
