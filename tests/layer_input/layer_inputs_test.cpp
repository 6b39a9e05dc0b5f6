// When inputs leave, stay and come back: residency, prefetch, recall, limits and the counts of
// each.
#include "swapline/layer_input/layer_inputs.h"

#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <functional>
#include <string>
#include <vector>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::SwappedLayers;
using testing::TinyModel;
using testing::TinyModelOptions;

class LayerInputsTest : public testing::SimTest {
 protected:
  static LayerInputStats stats_after(const LayerInputOptions& options,
                                     int64_t steps = 2,
                                     TinyModelOptions model_options = {}) {
    SwappedLayers swapped(options);
    testing::TrainOptions train;
    train.steps = steps;
    train.model = model_options;
    testing::train(train, &swapped.inputs);
    EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
    EXPECT_EQ(swapped.context->pending_release_bytes(), 0U);
    return swapped.inputs.stats();
  }
  static LayerInputOptions six_layers() {
    LayerInputOptions options;
    options.num_layers = 6;
    return options;
  }
  static constexpr size_t kInputBytes = 33 * 29 * 4;
};

TEST_F(LayerInputsTest, AtMostOneInputIsResidentBesidesTheRunningLayers) {
  for (const int64_t num_layers : {1, 2, 3, 6, 20}) {
    for (const double slowdown : {1.0, 50.0}) {
      use_machine({.copy_slowdown = slowdown});
      LayerInputOptions options;
      options.num_layers = num_layers;
      options.max_swapping_out = 1;
      TinyModelOptions model;
      model.num_layers = num_layers;
      EXPECT_LE(stats_after(options, 2, model).peak_resident_inputs, 1) << num_layers;
    }
  }
}

TEST_F(LayerInputsTest, WithoutSwapAllInputsAreResident) {
  LayerInputOptions options = six_layers();
  options.enabled = false;
  const LayerInputStats stats = stats_after(options);
  EXPECT_EQ(stats.peak_resident_inputs, 5);
  EXPECT_EQ(stats.num_swapped_out + stats.num_kept_on_device + stats.num_refused, 0);
}

TEST_F(LayerInputsTest, TheLastInputStaysAndTheOneBeforeIsRecalled) {
  const LayerInputStats stats = stats_after(six_layers(), 1);
  EXPECT_EQ(stats.num_kept_on_device, 1);
  EXPECT_EQ(stats.num_swapped_out, 5);
  EXPECT_EQ(stats.num_recalls, 1);
  EXPECT_EQ(stats.num_swapped_in, 4);
  EXPECT_EQ(stats.num_prefetch_hits, 4);
  EXPECT_EQ(stats.num_prefetch_misses, 0);
  EXPECT_EQ(stats.bytes_out, 5 * kInputBytes);
  EXPECT_EQ(stats.bytes_in, 4 * kInputBytes);
}

TEST_F(LayerInputsTest, WithoutTheNumberOfLayersTheLastInputIsRecalled) {
  const LayerInputStats stats = stats_after({}, 1);
  EXPECT_EQ(stats.num_kept_on_device, 0);
  EXPECT_EQ(stats.num_swapped_out, 6);
  EXPECT_EQ(stats.num_recalls, 2);
  EXPECT_LE(stats.peak_resident_inputs, 1);
}

TEST_F(LayerInputsTest, WithoutPrefetchEachBackwardFetchesItsOwn) {
  LayerInputOptions options = six_layers();
  options.prefetch = 0;
  const LayerInputStats stats = stats_after(options, 1);
  EXPECT_EQ(stats.num_prefetch_hits, 0);
  EXPECT_EQ(stats.num_prefetch_misses, 5);
}

TEST_F(LayerInputsTest, ADeeperPrefetchHoldsMore) {
  LayerInputOptions options = six_layers();
  options.prefetch = 3;
  const LayerInputStats stats = stats_after(options, 1);
  EXPECT_EQ(stats.peak_resident_inputs, 3);
  EXPECT_EQ(stats.num_prefetch_misses, 0);
  options.prefetch_bytes = 2 * kInputBytes;
  EXPECT_EQ(stats_after(options, 1).peak_resident_inputs, 2);
}

TEST_F(LayerInputsTest, MaxSwappingOutBoundsWhatOutlivesItsLayer) {
  use_machine({.copy_slowdown = 1000});
  for (const int64_t most : {0, 1, 2, 4}) {
    LayerInputOptions options = six_layers();
    options.max_swapping_out = most;
    EXPECT_EQ(stats_after(options, 1).peak_resident_inputs, std::max<int64_t>(most, 1)) << most;
  }
}

TEST_F(LayerInputsTest, SmallInputsStayOnTheDevice) {
  LayerInputOptions options = six_layers();
  options.min_bytes = kInputBytes + 1;
  EXPECT_EQ(stats_after(options, 1).num_swapped_out, 0);
  options.min_bytes = kInputBytes;
  EXPECT_EQ(stats_after(options, 1).num_swapped_out, 5);
}

TEST_F(LayerInputsTest, TheHostBudgetIsKept) {
  LayerInputOptions options = six_layers();
  options.max_host_bytes = 2 * kInputBytes;
  const LayerInputStats stats = stats_after(options, 3);
  EXPECT_EQ(stats.num_swapped_out, 3 * 2);
  EXPECT_EQ(stats.num_kept_on_device, 3 * 4);
}

TEST_F(LayerInputsTest, TheCustomCheckDecides) {
  LayerInputOptions options = six_layers();
  int asked = 0;
  options.custom_check = [&asked](const at::Tensor&) { return ++asked % 2 == 0; };
  const LayerInputStats stats = stats_after(options, 1);
  EXPECT_EQ(stats.num_refused, 3);
  EXPECT_GT(stats.num_swapped_out, 0);
}

TEST_F(LayerInputsTest, WithoutPinnedMemoryInputsStayOnTheDevice) {
  SwapContextOptions context;
  context.host.max_bytes = 2 * 4096;
  context.host.slab_bytes = 4096;
  SwappedLayers swapped(six_layers(), context);
  testing::TrainOptions options;
  const auto got = testing::train(options, &swapped.inputs);
  EXPECT_GT(swapped.inputs.stats().num_host_failures, 0);
  EXPECT_EQ(swapped.context->num_host_failures(), swapped.inputs.stats().num_host_failures);
  EXPECT_TRUE(testing::same_bits(got, testing::train(options, nullptr)));
}

TEST_F(LayerInputsTest, ThePeakOfDeviceMemoryFalls) {
  const auto peak = [](bool enabled) {
    LayerInputOptions options;
    options.num_layers = 12;
    options.enabled = enabled;
    SwappedLayers swapped(options);
    testing::TrainOptions train;
    train.model.num_layers = 12;
    train.model.batch = 4096;
    testing::train(train, &swapped.inputs);
    sim().reset_peak_memory(0);
    testing::train(train, &swapped.inputs);
    return sim().memory_stats(0).peak_allocated_bytes;
  };
  const size_t kept = peak(false);
  const size_t swapped = peak(true);
  const size_t input_bytes = size_t{4096} * 29 * 4;
  // 12 inputs against the last one's own and one besides; block sizes round a little.
  EXPECT_LE(swapped + 9 * input_bytes, kept);
}

TEST_F(LayerInputsTest, ASteadyLoopPinsNothingAndMakesNoStreams) {
  SwappedLayers swapped(six_layers());
  testing::TrainOptions options;
  options.steps = 1;
  testing::train(options, &swapped.inputs);
  const size_t pinned = swapped.context->host().stats().num_pinned_allocations;
  const int64_t streams = sim().counters(0).num_streams;
  const size_t reserved = sim().memory_stats(0).reserved_bytes;
  options.steps = 30;
  testing::train(options, &swapped.inputs);
  EXPECT_EQ(swapped.context->host().stats().num_pinned_allocations, pinned);
  EXPECT_EQ(sim().counters(0).num_streams, streams);
  EXPECT_EQ(sim().memory_stats(0).reserved_bytes, reserved);
}

TEST_F(LayerInputsTest, ASlowLinkShowsAsExposedTime) {
  use_machine({.copy_slowdown = 1000});
  SwapContextOptions timed;
  timed.timing = true;
  SwappedLayers swapped(six_layers(), timed);
  testing::train({}, &swapped.inputs);
  EXPECT_GT(swapped.inputs.stats().exposed_out_ms, 0);
  EXPECT_GT(swapped.inputs.stats().exposed_in_ms, 0);
  swapped.inputs.reset_stats();
  const LayerInputStats none = swapped.inputs.stats();
  EXPECT_EQ(none.exposed_out_ms + none.exposed_in_ms, 0);
  EXPECT_EQ(none.num_swapped_out, 0);
}

TEST_F(LayerInputsTest, LayerInputsAreReportedToTheAccountWithAndWithoutSwap) {
  for (const bool enabled : {true, false}) {
    int noted = 0;
    SwapContextOptions context;
    context.on_device_memory = [&noted](const c10::Storage&, MemoryKind) { ++noted; };
    LayerInputOptions options = six_layers();
    options.enabled = enabled;
    SwappedLayers swapped(options, context);
    testing::TrainOptions train;
    train.steps = 1;
    testing::train(train, &swapped.inputs);
    EXPECT_EQ(noted, enabled ? 6 + 4 : 6);
  }
}

TEST_F(LayerInputsTest, RecomputeWithoutSwapNeedsNoContextAndRunsOnTheCpu) {
  LayerInputOptions options = six_layers();
  options.enabled = false;
  LayerInputs inputs(nullptr, options);
  const at::Tensor weight = at::ones({4, 4}).requires_grad_(true);
  at::Tensor h = at::ones({4, 4}).requires_grad_(true) * 2;
  for (int i = 0; i < 3; ++i) {
    h = inputs.recompute(
        [&](const at::Tensor& in) { return at::dropout(at::mm(in, weight), 0.5, true); }, h);
  }
  h.sum().backward();
  EXPECT_TRUE(weight.grad().defined());
  inputs.reset_stats();
  EXPECT_EQ(inputs.stats().num_swapped_out, 0);
  EXPECT_EQ(inputs.context(), nullptr);
}

TEST_F(LayerInputsTest, OptionsOutOfRangeAreNamed) {
  const auto context = std::make_shared<SwapContext>(device());
  const auto error = [&](const std::function<void(LayerInputOptions&)>& change) {
    LayerInputOptions options;
    change(options);
    return message_of([&] { LayerInputs(context, options); });
  };
  EXPECT_THAT(
      error([](auto& o) { o.max_swapping_out = -2; }),
      HasSubstr("LayerInputOptions::max_swapping_out is -2; it must be 0 or more, or kAuto"));
  EXPECT_THAT(error([](auto& o) { o.prefetch = -2; }), HasSubstr("prefetch"));
  EXPECT_THAT(error([](auto& o) { o.keep_last = -2; }),
              HasSubstr("LayerInputOptions::keep_last is -2; it must be 0 or more, or kAuto"));
  EXPECT_THAT(error([](auto& o) { o.num_layers = -1; }), HasSubstr("num_layers"));
  EXPECT_THAT(message_of([] { LayerInputs(nullptr, {}); }), HasSubstr("SwapContext"));
}

}  // namespace
}  // namespace swapline
