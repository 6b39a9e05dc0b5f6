// A layer run again ahead of its backward: the same bits with one run less in backward, what it
// costs in memory, and what it ignores, refuses and survives.
#include "tests/layer_input/pipeline_stage.h"
#include "tests/support/errors.h"

#include <functional>
#include <stdexcept>
#include <vector>

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

namespace swapline {
namespace {

using testing::all_forward_all_backward;
using ::testing::HasSubstr;
using testing::kStageLayers;
using testing::message_of;
using testing::random_parameter;
using testing::random_tensor;
using testing::same_bits;
using testing::stage_options;
using testing::SwappedLayers;
using testing::TinyModel;

// Three passes of a model through recompute(), run one by one.
class Passes {
 public:
  explicit Passes(LayerInputs& inputs, double dropout = 0)
      : inputs_(inputs), model_({.num_layers = kStageLayers, .dropout = dropout}) {
    num_runs.resize(kStageLayers);
  }

  at::Tensor forward(int64_t microbatch) {
    inputs_.begin_microbatch(microbatch);
    at::Tensor h = model_.embed(model_.batch(microbatch));
    for (int64_t i = 0; i < kStageLayers; ++i) {
      h = inputs_.recompute([this, i](const at::Tensor& in) { return run_layer(i, in); }, h);
    }
    return h.square().mean();
  }
  const TinyModel& model() const { return model_; }

  std::vector<int> num_runs;          // of each layer
  std::function<void()> before_last;  // called by the last layer

 private:
  at::Tensor run_layer(int64_t i, const at::Tensor& in) {
    ++num_runs[i];
    if (i + 1 == kStageLayers && before_last) {
      before_last();
    }
    return model_.run_layer(i, in);
  }

  LayerInputs& inputs_;
  TinyModel model_;
};

class RecomputeAheadTest : public testing::SimTest {
 protected:
  void SetUp() override { use_machine({.late_copies = true, .copy_slowdown = 20}); }

  // Gradients of the passes 0..n-1, forward one after the other and then backward, with those in
  // `ahead` run ahead before the first backward.
  static std::vector<at::Tensor> grads_of(int64_t num_passes,
                                          const std::vector<int64_t>& ahead,
                                          double dropout = 0) {
    at::manual_seed(5);
    SwappedLayers swapped(stage_options(kAuto));
    Passes passes(swapped.inputs, dropout);
    std::vector<at::Tensor> losses;
    for (int64_t i = 0; i < num_passes; ++i) {
      losses.push_back(passes.forward(i));
    }
    for (const int64_t each : ahead) {
      swapped.inputs.recompute_ahead(each);
    }
    for (const at::Tensor& loss : losses) {
      loss.backward();
    }
    EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
    EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
    for (const int num_runs : passes.num_runs) {
      EXPECT_EQ(num_runs, 2 * num_passes);
    }
    std::vector<at::Tensor> grads = passes.model().grads_on_cpu();
    grads.push_back(at::rand({4}));
    return grads;
  }
};

TEST_F(RecomputeAheadTest, TheBitsAreThoseOfTheOrdinaryOrder) {
  for (const double dropout : {0.0, 0.4}) {
    const std::vector<at::Tensor> expected = grads_of(3, {}, dropout);
    for (const auto& ahead : std::vector<std::vector<int64_t>>{{0}, {2}, {1, 0}, {0, 1, 2}}) {
      EXPECT_TRUE(same_bits(grads_of(3, ahead, dropout), expected));
    }
  }
}

TEST_F(RecomputeAheadTest, AutocastIsAsItWasInForward) {
  const at::Tensor weight = random_parameter({8, 8}, 1);
  std::vector<at::ScalarType> seen;
  const auto grad = [&](bool ahead) {
    SwappedLayers swapped;
    swapped.inputs.begin_microbatch(0);
    const auto type = device().type();
    at::autocast::set_autocast_dtype(type, at::kBFloat16);
    at::autocast::set_autocast_enabled(type, true);
    const at::Tensor h = random_tensor({8, 8}, 2).requires_grad_(true) * 2;
    const at::Tensor out = swapped.inputs.recompute(
        [&](const at::Tensor& in) {
          const at::Tensor product = at::mm(in, weight);
          seen.push_back(product.scalar_type());
          return product + at::mm(in, weight);
        },
        h);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type, false);
    if (ahead) {
      swapped.inputs.recompute_ahead(0);
    }
    out.to(at::kFloat).sum().backward();
    const at::Tensor got = weight.grad().cpu();
    weight.mutable_grad() = at::Tensor();
    return got;
  };
  EXPECT_TRUE(same_bits(grad(false), grad(true)));
  EXPECT_EQ(seen, (std::vector<at::ScalarType>(4, at::kBFloat16)));
}

TEST_F(RecomputeAheadTest, BackwardRunsThatLayerNoMore) {
  SwappedLayers swapped(stage_options(1));
  Passes passes(swapped.inputs);
  const at::Tensor loss = passes.forward(0);
  const at::Tensor other = passes.forward(1);
  {
    const c10::NoGradGuard no_grad;  // whatever the caller's mode is
    swapped.inputs.recompute_ahead(0);
  }
  EXPECT_EQ(passes.num_runs.back(), 3);
  swapped.inputs.recompute_ahead(0);
  EXPECT_EQ(passes.num_runs.back(), 3) << "it was run ahead already";
  loss.backward();
  EXPECT_EQ(passes.num_runs.back(), 3);
  EXPECT_EQ(passes.num_runs.front(), 3);
  swapped.inputs.recompute_ahead(0);
  EXPECT_EQ(passes.num_runs.back(), 3) << "its backward has run";
  swapped.inputs.recompute_ahead(77);
}

TEST_F(RecomputeAheadTest, OneInputAndOneLayersActivationsStayUntilItsBackward) {
  SwappedLayers swapped(stage_options(1));
  Passes passes(swapped.inputs);
  const at::Tensor loss = passes.forward(0);
  const at::Tensor other = passes.forward(1);
  sim().synchronize_device(0);
  const size_t allocated = sim().memory_stats(0).allocated_bytes;
  swapped.inputs.recompute_ahead(0);
  // It and one that is still on its way out.
  EXPECT_EQ(swapped.inputs.stats().resident_inputs, 1 + 1);
  EXPECT_GT(sim().memory_stats(0).allocated_bytes, allocated);
  // The bound of strict and the one that waits for its backward.
  const at::Tensor third = passes.forward(2);
  loss.backward();
  other.backward();
  third.backward();
  EXPECT_LE(swapped.inputs.stats().peak_resident_inputs, 2 + 1);
  EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
}

TEST_F(RecomputeAheadTest, TheBackwardIsShorterByThatRun) {
  const auto backward_ns = [](bool ahead) {
    SwappedLayers swapped(stage_options(1));
    testing::PipelineStage stage(256);
    const std::vector<testing::Slot> forward = {{testing::Pass::kForward, 0}};
    const std::vector<testing::Slot> backward = {{testing::Pass::kBackward, 0}};
    stage.run(swapped.inputs, forward, /*hinted=*/true);
    if (ahead) {
      swapped.inputs.recompute_ahead(0);
    }
    const double before = testing::device_ns();
    stage.run(swapped.inputs, backward, /*hinted=*/true);
    return testing::device_ns() - before;
  };
  use_machine();
  const double usual = backward_ns(false);
  // A layer's forward is a third of its recompute and backward.
  EXPECT_LT(backward_ns(true), usual * (1 - 0.9 / (3 * kStageLayers)));
}

TEST_F(RecomputeAheadTest, ALayerThatThrowsLeavesThePassAsItWas) {
  SwappedLayers swapped(stage_options(1));
  Passes passes(swapped.inputs);
  const at::Tensor loss = passes.forward(0);
  const at::Tensor other = passes.forward(1);
  const int64_t resident = swapped.inputs.stats().resident_inputs;
  const size_t host_bytes = swapped.context->host().stats().requested_bytes;
  passes.before_last = [] { throw std::runtime_error("gives up"); };
  EXPECT_EQ(message_of([&] { swapped.inputs.recompute_ahead(0); }), "gives up");
  EXPECT_LE(swapped.inputs.stats().resident_inputs, resident);
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, host_bytes);
  passes.before_last = nullptr;
  loss.backward();
  other.backward();
  SwappedLayers again(stage_options(1));
  Passes expected(again.inputs);
  const at::Tensor first = expected.forward(0);
  const at::Tensor second = expected.forward(1);
  first.backward();
  second.backward();
  EXPECT_TRUE(same_bits(passes.model().grads_on_cpu(), expected.model().grads_on_cpu()));
}

TEST_F(RecomputeAheadTest, ABackwardThatThrowsCanBeRunAgain) {
  SwappedLayers swapped(stage_options(1));
  Passes passes(swapped.inputs);
  const at::Tensor loss = passes.forward(0);
  passes.before_last = [] { throw std::runtime_error("gives up"); };
  const auto backward = [&] { loss.backward({}, /*retain_graph=*/true); };
  EXPECT_EQ(message_of(backward), "gives up");
  // Its own is out again; the prefetched one waits for its backward.
  EXPECT_LE(swapped.inputs.stats().resident_inputs, 1);
  passes.before_last = nullptr;
  backward();
  EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
  SwappedLayers again(stage_options(1));
  Passes expected(again.inputs);
  expected.forward(0).backward();
  EXPECT_TRUE(same_bits(passes.model().grads_on_cpu(), expected.model().grads_on_cpu()));
}

TEST_F(RecomputeAheadTest, InsideABackwardItIsRefused) {
  SwappedLayers swapped(stage_options(1));
  Passes passes(swapped.inputs);
  const at::Tensor other = passes.forward(0);
  const at::Tensor loss = passes.forward(1);
  passes.before_last = [&] { swapped.inputs.recompute_ahead(0); };
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("called inside a backward"));
  passes.before_last = nullptr;
}

TEST_F(RecomputeAheadTest, ARetainedGraphRunsTheLayerAnewForEachFurtherBackward) {
  const auto grads = [](bool ahead) {
    SwappedLayers swapped(stage_options(1));
    Passes passes(swapped.inputs);
    const at::Tensor loss = passes.forward(0);
    for (const bool retain : {true, true, false}) {
      if (ahead) {
        swapped.inputs.recompute_ahead(0);
      }
      loss.backward({}, retain);
    }
    EXPECT_EQ(passes.num_runs.back(), 4);
    EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
    EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
    return passes.model().grads_on_cpu();
  };
  EXPECT_TRUE(same_bits(grads(false), grads(true)));
}

TEST_F(RecomputeAheadTest, AGraphDroppedAfterwardsLeavesNothing) {
  SwappedLayers swapped(stage_options(1));
  Passes passes(swapped.inputs);
  sim().synchronize_device(0);
  const size_t allocated = sim().memory_stats(0).allocated_bytes;
  {
    const at::Tensor loss = passes.forward(0);
    swapped.inputs.recompute_ahead(0);
  }
  sim().synchronize_device(0);
  swapped.context->settle_done();
  EXPECT_EQ(sim().memory_stats(0).allocated_bytes, allocated);
  EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
  swapped.inputs.recompute_ahead(0);
}

TEST_F(RecomputeAheadTest, AnArgumentWrittenInPlaceAfterwardsIsAnError) {
  SwappedLayers swapped;
  const at::Tensor scale = random_tensor({8, 8}, 1);
  const at::Tensor h = random_tensor({8, 8}, 2).requires_grad_(true) * 2;
  swapped.inputs.begin_microbatch(0);
  const std::vector<at::Tensor> outputs = swapped.inputs.recompute(
      [](const at::Tensor& in, const std::vector<at::Tensor>& others) {
        return std::vector<at::Tensor>{in * others[0]};
      },
      h,
      {scale});
  scale.add_(1);
  EXPECT_THAT(message_of([&] { swapped.inputs.recompute_ahead(0); }),
              HasSubstr("argument 1 was modified"));
}

}  // namespace
}  // namespace swapline
