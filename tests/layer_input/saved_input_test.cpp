// Inputs saved and taken by hand: the same rules and counts as recompute(), clear errors, and
// nothing left behind when a pass ends early.
#include "swapline/layer_input/saved_input.h"

#include "tests/layer_input/pipeline_stage.h"
#include "tests/support/errors.h"

#include <stdexcept>
#include <utility>
#include <vector>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::kStageLayers;
using testing::message_of;
using testing::PipelineStage;
using testing::random_tensor;
using testing::same_bits;
using testing::stage_options;
using testing::SwappedLayers;

// One pass through a stage, by hand.
struct ByHand {
  ByHand(LayerInputs& inputs, const PipelineStage& stage) : inputs(inputs), stage(stage) {}

  void forward(int64_t microbatch, bool chained = true) {
    const c10::NoGradGuard no_grad;
    at::Tensor h = stage.received(microbatch) * 1;
    for (int64_t i = 0; i < kStageLayers; ++i) {
      const bool has_before = chained && !saved.empty();
      saved.push_back(inputs.save(h, has_before ? &saved.back() : nullptr));
      h = stage.run_layer(i, h);
    }
    saved.back().layer_done();
  }
  void backward(at::Tensor grad) {
    while (!saved.empty()) {
      {
        const at::Tensor input = saved.back().take().set_requires_grad(true);
        const auto layer = static_cast<int64_t>(saved.size()) - 1;
        stage.run_layer(layer, input).backward(grad);
        grad = input.grad();
      }
      saved.back().finish();
      saved.pop_back();
    }
  }

  LayerInputs& inputs;
  const PipelineStage& stage;
  std::vector<SavedInput> saved;
};

std::vector<at::Tensor> weight_grads(const PipelineStage& stage) {
  std::vector<at::Tensor> grads = stage.grads_on_cpu();
  grads.resize(2 * kStageLayers);
  return grads;
}

class SavedInputTest : public testing::SimTest {
 protected:
  void SetUp() override { use_machine({.late_copies = true, .copy_slowdown = 20}); }

  static std::vector<at::Tensor> expected_grads() {
    SwappedLayers plain(stage_options(1, /*enabled=*/false));
    PipelineStage stage(16);
    stage.run(plain.inputs, testing::one_forward_one_backward(1, 1), false);
    return weight_grads(stage);
  }
};

TEST_F(SavedInputTest, GivesTheBitsAndCountsOfRecompute) {
  SwappedLayers swapped(stage_options(1));
  PipelineStage stage(16);
  ByHand pass(swapped.inputs, stage);
  pass.forward(0);
  pass.backward(stage.gradient(0));
  EXPECT_TRUE(same_bits(weight_grads(stage), expected_grads()));
  const LayerInputStats stats = swapped.inputs.stats();
  EXPECT_EQ(stats.num_kept_on_device, 1);
  EXPECT_EQ(stats.num_swapped_out, kStageLayers - 1);
  EXPECT_EQ(stats.num_recalls, 1);
  EXPECT_EQ(stats.num_prefetch_hits, kStageLayers - 2);
  EXPECT_EQ(stats.num_prefetch_misses, 0);
  EXPECT_LE(stats.peak_resident_inputs, 1);
  EXPECT_EQ(stats.resident_inputs, 0);
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
}

TEST_F(SavedInputTest, WithoutTheOneBeforeEachBackwardFetchesItsOwn) {
  SwappedLayers swapped(stage_options(1));
  PipelineStage stage(16);
  ByHand pass(swapped.inputs, stage);
  pass.forward(0, /*chained=*/false);
  pass.backward(stage.gradient(0));
  EXPECT_TRUE(same_bits(weight_grads(stage), expected_grads()));
  EXPECT_EQ(swapped.inputs.stats().num_prefetch_hits, 0);
  EXPECT_GT(swapped.inputs.stats().num_prefetch_misses, 0);
}

TEST_F(SavedInputTest, HintsKnowSavedInputsToo) {
  SwappedLayers swapped(stage_options(1));
  PipelineStage stage(16);
  std::vector<ByHand> passes;
  for (int64_t i = 0; i < 3; ++i) {
    passes.emplace_back(swapped.inputs, stage);
    swapped.inputs.begin_microbatch(i);
    passes[i].forward(i);
  }
  for (int64_t i = 0; i < 3; ++i) {
    swapped.inputs.prefetch(i);
    passes[i].backward(stage.gradient(i));
  }
  EXPECT_EQ(swapped.inputs.stats().num_prefetch_misses, 0);
  EXPECT_EQ(swapped.inputs.stats().num_kept_on_device, 0);
}

TEST_F(SavedInputTest, MayBeTakenTwiceAndFinishedTwice) {
  SwappedLayers swapped;
  SavedInput saved = swapped.inputs.save(random_tensor({8, 8}, 1));
  const SavedInput next = swapped.inputs.save(random_tensor({8, 8}, 2), &saved);
  EXPECT_TRUE(same_bits(saved.take(), random_tensor({8, 8}, 1)));
  EXPECT_TRUE(same_bits(saved.take(), random_tensor({8, 8}, 1)));
  EXPECT_TRUE(saved);
  saved.finish();
  EXPECT_FALSE(saved);
  saved.finish();
  saved.layer_done();
}

TEST_F(SavedInputTest, WhatIsTakenHasNoPartInWhatIsSaved) {
  LayerInputOptions kept;
  kept.enabled = false;
  for (const LayerInputOptions& options : {LayerInputOptions{}, kept}) {
    SwappedLayers swapped(options);
    SavedInput saved = swapped.inputs.save(random_tensor({8, 8}, 1));
    saved.take().set_requires_grad(true);
    EXPECT_FALSE(saved.take().requires_grad());
    saved.finish();
  }
}

TEST_F(SavedInputTest, AnEmptyOneCannotBeTaken) {
  SwappedLayers swapped;
  SavedInput never;
  EXPECT_THAT(message_of([&] { never.take(); }), HasSubstr("SavedInput::take: it is empty"));
  SavedInput saved = swapped.inputs.save(random_tensor({8, 8}, 1));
  SavedInput moved = std::move(saved);
  EXPECT_TRUE(moved);
  moved.finish();
  EXPECT_THAT(message_of([&] { moved.take(); }), HasSubstr("finished"));
}

TEST_F(SavedInputTest, WrongArgumentsAreNamed) {
  SwappedLayers swapped;
  SwappedLayers others;
  const SavedInput foreign = others.inputs.save(random_tensor({8, 8}, 1));
  EXPECT_THAT(message_of([&] { swapped.inputs.save(random_tensor({8, 8}, 2), &foreign); }),
              HasSubstr("`before` was saved by other LayerInputs"));
  EXPECT_THAT(message_of([&] { swapped.inputs.save(at::Tensor()); }), HasSubstr("is undefined"));
}

TEST_F(SavedInputTest, AnInputWrittenInPlaceAfterwardsIsAnError) {
  SwappedLayers swapped;
  const at::Tensor h = random_tensor({8, 8}, 1);
  SavedInput saved = swapped.inputs.save(h);
  sim().synchronize_device(0);
  h.add_(1);
  EXPECT_THAT(message_of([&] { saved.take(); }), HasSubstr("in-place operation"));
}

TEST_F(SavedInputTest, AnInputNeverTakenOrNotFinishedLeavesNothing) {
  SwappedLayers swapped(stage_options(1));
  PipelineStage stage(16);
  const size_t allocated = sim().memory_stats(0).allocated_bytes;
  for (const int64_t num_taken : {0, 1, 3}) {
    try {
      ByHand pass(swapped.inputs, stage);
      pass.forward(0);
      for (int64_t i = 0; i < num_taken; ++i) {
        pass.saved[pass.saved.size() - 1 - static_cast<size_t>(i)].take();
      }
      throw std::runtime_error("a layer gives up");
    } catch (const std::runtime_error&) {
    }
    sim().synchronize_device(0);
    swapped.context->settle_done();
    EXPECT_EQ(swapped.context->pending_release_bytes(), 0U);
    EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
    EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
    EXPECT_EQ(sim().memory_stats(0).allocated_bytes, allocated);
  }
  ByHand pass(swapped.inputs, stage);
  pass.forward(0);
  pass.backward(stage.gradient(0));
  EXPECT_TRUE(same_bits(weight_grads(stage), expected_grads()));
}

TEST_F(SavedInputTest, WhenTheDeviceIsFullItCanBeTakenLater) {
  use_machine({.capacity_bytes = size_t{128} << 20});
  SwappedLayers swapped(stage_options(1));
  // Large enough for a segment of the allocator each.
  const auto input = [] { return random_tensor({1 << 16, 64}, 1); };
  SavedInput saved = swapped.inputs.save(input());
  const SavedInput next = swapped.inputs.save(random_tensor({1 << 16, 64}, 2), &saved);
  const SavedInput last = swapped.inputs.save(random_tensor({1 << 16, 64}, 3), &next);
  sim().empty_cache(0);
  sim().take_away(0, sim().options().spec.memory_bytes);
  EXPECT_THROW(saved.take(), c10::OutOfMemoryError);
  sim().take_away(0, 0);
  EXPECT_TRUE(same_bits(saved.take(), input()));
}

TEST_F(SavedInputTest, MayOutliveTheLayerInputs) {
  SavedInput saved;
  {
    SwappedLayers swapped;
    saved = swapped.inputs.save(random_tensor({8, 8}, 1));
  }
  EXPECT_TRUE(same_bits(saved.take(), random_tensor({8, 8}, 1)));
  saved.finish();
}

TEST_F(SavedInputTest, WithoutSwapItNeedsNoContext) {
  LayerInputOptions options;
  options.enabled = false;
  LayerInputs inputs(nullptr, options);
  SavedInput saved = inputs.save(at::full({4}, 3.0));
  saved.layer_done();
  EXPECT_TRUE(at::equal(saved.take(), at::full({4}, 3.0)));
  saved.finish();
}

}  // namespace
}  // namespace swapline
