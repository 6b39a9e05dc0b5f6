// The wrappers around a framework that recomputes and saves by itself: the bits are those without
// swap, whatever the order, and each input is where it should be.
#include "tests/support/checkpoint_framework.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace swapline {
namespace {

using testing::checkpoint;
using ::testing::ElementsAre;
using testing::framework_batch;
using testing::framework_grads;
using testing::FrameworkLayer;
using testing::FrameworkModel;
using ::testing::IsEmpty;
using testing::message_of;
using testing::random_tensor;
using testing::same_bits;

class WrappersTest : public testing::SimTest {
 protected:
  void SetUp() override { use_machine({.late_copies = true, .copy_slowdown = 20}); }

  static std::shared_ptr<SwapLayerInputs> make_all(LayerInputOptions options = {}) {
    return std::make_shared<SwapLayerInputs>(std::make_shared<SwapContext>(device()),
                                             std::move(options));
  }
};

TEST_F(WrappersTest, AStepHasTheBitsOfOneWithoutSwap) {
  const auto all = make_all();
  FrameworkModel model(all);
  for (uint64_t i = 0; i < 4; ++i) {
    model.forward(framework_batch(i)).backward();
  }
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(4)));
  const LayerInputStats stats = all->stats();
  EXPECT_EQ(stats.num_swapped_out, 4 * 6);
  EXPECT_EQ(stats.num_prefetch_misses, 0);
  EXPECT_GT(stats.num_prefetch_hits, 0);
  EXPECT_EQ(stats.resident_inputs, 0);
  EXPECT_LE(stats.peak_resident_inputs, 1);
}

TEST_F(WrappersTest, StatesCanBeRead) {
  const auto all = make_all();
  FrameworkModel model(all);
  const at::Tensor loss = model.forward(framework_batch(0));
  EXPECT_THAT(model.layers[0]->swapper->states(), ElementsAre(Residency::kHost));
  EXPECT_THAT(model.layers[4]->swapper->states(), ElementsAre(Residency::kSwappingOut));
  EXPECT_THAT(model.layers[5]->swapper->states(), ElementsAre(Residency::kSwappingOut));
  loss.backward();
  EXPECT_THAT(model.layers[0]->swapper->states(), IsEmpty());
}

TEST_F(WrappersTest, ThePeakOfDeviceMemoryFalls) {
  const auto peak = [](bool swapped) {
    sim().reset_peak_memory(0);
    const auto all = swapped ? make_all() : nullptr;
    FrameworkModel model(all, 12);
    for (uint64_t i = 0; i < 2; ++i) {
      model.forward(framework_batch(i, 4096)).backward();
    }
    return sim().memory_stats(0).peak_allocated_bytes;
  };
  const size_t kept = peak(false);
  // 12 inputs against the running layer's own, one to let go of, one that comes back, and rounding.
  EXPECT_LE(peak(true) + 8 * (4096 * 29 * 4), kept);
}

TEST_F(WrappersTest, TheInputIsThereWhenTheLayerRunsAgain) {
  const auto all = make_all({.prefetch = 0});
  FrameworkModel model(all);
  model.forward(framework_batch(0)).backward();
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(1)));
  EXPECT_EQ(all->stats().num_prefetch_hits, 0);
  EXPECT_GT(all->stats().num_prefetch_misses, 0);
}

TEST_F(WrappersTest, MicrobatchesGoBackwardInAnyOrder) {
  for (const auto& order : {std::vector<size_t>{2, 1, 0}, {0, 1, 2}, {1, 2, 0}}) {
    const auto all = make_all();
    FrameworkModel plain(nullptr);
    FrameworkModel model(all);
    std::vector<at::Tensor> expected;
    std::vector<at::Tensor> losses;
    for (uint64_t i = 0; i < 3; ++i) {
      all->begin_microbatch(static_cast<int64_t>(i));
      expected.push_back(plain.forward(framework_batch(i)));
      losses.push_back(model.forward(framework_batch(i)));
    }
    EXPECT_EQ(model.layers[0]->swapper->states().size(), 3U);
    for (const size_t i : order) {
      all->prefetch(static_cast<int64_t>(i));
      expected[i].backward();
      losses[i].backward();
    }
    EXPECT_TRUE(same_bits(model.grads_on_cpu(), plain.grads_on_cpu()));
    EXPECT_EQ(all->stats().num_prefetch_misses, 0);
  }
}

TEST_F(WrappersTest, EvaluationSwapsNothingAndChangesNothing) {
  const auto all = make_all();
  FrameworkModel model(all);
  const auto eval = [&] {
    const c10::NoGradGuard no_grad;
    model.forward(framework_batch(7));
  };
  eval();
  const at::Tensor loss = model.forward(framework_batch(0));
  eval();
  loss.backward();
  eval();
  EXPECT_EQ(all->stats().num_swapped_out, 6);
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(1)));
}

TEST_F(WrappersTest, WithoutRecomputeNothingIsSwapped) {
  const auto all = make_all();
  FrameworkModel model(all);
  FrameworkModel plain(nullptr);
  const auto run = [](FrameworkModel& each) {
    at::Tensor h = at::mm(framework_batch(0), each.embedding);
    for (size_t i = 0; i < 6; ++i) {
      // Every other layer is recomputed, as in block recompute.
      h = i % 2 == 0
              ? checkpoint([&each, i](const at::Tensor& in) { return each.run_layer(i, in); }, h)
              : each.run_layer(i, h);
    }
    h.square().mean().backward();
  };
  run(model);
  run(plain);
  EXPECT_EQ(all->stats().num_swapped_out, 3);
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), plain.grads_on_cpu()));
}

TEST_F(WrappersTest, SeveralLayersInABlockSwapTheBlocksInputOnly) {
  for (const size_t block_size : {2U, 3U, 4U, 6U}) {
    const auto all = make_all();
    FrameworkModel model(all);
    model.forward(framework_batch(0), block_size).backward();
    EXPECT_EQ(all->stats().num_swapped_out, static_cast<int64_t>((5 + block_size) / block_size));
    EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(1, block_size)));
  }
}

TEST_F(WrappersTest, FrozenLowerLayersAreLeftAlone) {
  const auto run = [](FrameworkModel& model) {
    model.embedding.set_requires_grad(false);
    for (size_t i = 0; i < 3; ++i) {
      model.layers[i]->a.set_requires_grad(false);
      model.layers[i]->b.set_requires_grad(false);
    }
    at::Tensor h = at::mm(framework_batch(0), model.embedding);
    for (size_t i = 0; i < 6; ++i) {
      h = i < 4
              ? model.run_layer(i, h)
              : checkpoint([&model, i](const at::Tensor& in) { return model.run_layer(i, in); }, h);
    }
    h.square().mean().backward();
    return model.grads_on_cpu();
  };
  const auto all = make_all();
  FrameworkModel model(all);
  FrameworkModel plain(nullptr);
  EXPECT_TRUE(same_bits(run(model), run(plain)));
  EXPECT_EQ(all->stats().num_swapped_out, 2);
}

TEST_F(WrappersTest, ALayerThatReturnsItsInput) {
  const auto run = [](const std::shared_ptr<SwapLayerInputs>& all) {
    FrameworkModel model(all);
    for (const size_t i : {0U, 2U, 3U, 5U}) {
      FrameworkLayer& layer = *model.layers[i];
      layer.forward = [](SwapLayer&, const LayerCall& call) {
        return std::vector<at::Tensor>{call.hidden_states.view_as(call.hidden_states)};
      };
      if (all != nullptr) {
        layer.forward = swap_layer_input_forward_wrapper(layer.forward);
      }
    }
    for (uint64_t i = 0; i < 2; ++i) {
      model.forward(framework_batch(i)).backward();
    }
    return model.grads_on_cpu();
  };
  EXPECT_TRUE(same_bits(run(make_all()), run(nullptr)));
}

TEST_F(WrappersTest, ALayerWithoutASwapperRunsAsItWas) {
  const auto all = make_all();
  FrameworkModel model(all);
  model.layers[2]->swapper = nullptr;
  model.forward(framework_batch(0)).backward();
  EXPECT_EQ(all->stats().num_swapped_out, 5);
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(1)));
}

TEST_F(WrappersTest, AnMtpModuleHasNoSwapperAndTheOthersKeepTheirs) {
  const auto all = make_all();
  const LayerInit base = swap_layer_input_init_wrapper([](SwapLayer&) {}, all);
  SwapLayer first;
  base(first);
  SwapLayer mtp;
  swap_layer_input_init_wrapper(
      [&base](SwapLayer& layer) {
        base(layer);
        layer.is_mtp = true;
      },
      all)(mtp);
  EXPECT_EQ(mtp.swapper, nullptr);
  ASSERT_NE(first.swapper, nullptr);
  const auto kept = first.swapper;
  base(first);
  EXPECT_EQ(first.swapper, kept);
}

TEST_F(WrappersTest, ALayerCalledTwiceInAPass) {
  const auto run = [](const std::shared_ptr<SwapLayerInputs>& all) {
    FrameworkModel model(all, 3);
    at::Tensor h = at::mm(framework_batch(0), model.embedding);
    for (const size_t i : {0U, 1U, 1U, 0U, 2U, 1U}) {
      h = checkpoint([&model, i](const at::Tensor& in) { return model.run_layer(i, in); }, h);
    }
    h.square().mean().backward();
    return model.grads_on_cpu();
  };
  EXPECT_TRUE(same_bits(run(make_all()), run(nullptr)));
}

TEST_F(WrappersTest, SwapThisTensorIsHonoured) {
  const auto all = make_all();
  FrameworkModel model(all);
  at::Tensor h = at::mm(framework_batch(0), model.embedding);
  for (size_t i = 0; i < 6; ++i) {
    h = checkpoint(
        [&model, i](const at::Tensor& in) {
          return model.run_layer(i, in, /*swap_this_tensor=*/i % 3 == 0);
        },
        h);
  }
  h.square().mean().backward();
  EXPECT_EQ(all->stats().num_swapped_out, 2);
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(1)));
}

TEST_F(WrappersTest, TheCustomCheckDecidesAndKeepLastKeeps) {
  int64_t num_asked = 0;
  LayerInputOptions options;
  options.num_layers = 6;
  options.keep_last = 2;
  options.custom_check = [&num_asked](const at::Tensor&) { return ++num_asked != 1; };
  const auto all = make_all(options);
  FrameworkModel model(all);
  model.forward(framework_batch(0)).backward();
  EXPECT_EQ(num_asked, 6);
  EXPECT_EQ(all->stats().num_refused, 1);
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(1)));
}

TEST_F(WrappersTest, KeepLastAutoKeepsOneUntilPassesAreNamed) {
  const auto all = make_all({.num_layers = 6});
  FrameworkModel model(all);
  model.forward(framework_batch(0)).backward();
  EXPECT_EQ(all->stats().num_kept_on_device, 1);
  all->begin_microbatch(0);
  model.forward(framework_batch(1)).backward();
  EXPECT_EQ(all->stats().num_kept_on_device, 1);
  EXPECT_EQ(all->stats().num_swapped_out, 5 + 6);
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(2)));
}

TEST_F(WrappersTest, TheModuleTagNamesTheInputInErrors) {
  const auto all = make_all({.module_tag = "decoder"});
  FrameworkModel model(all);
  at::Tensor h = at::mm(framework_batch(0), model.embedding);
  checkpoint([&](const at::Tensor& in) { return model.run_layer(0, in); }, h);
  // As an in-place operation would.
  c10::VariableVersion version = h.unsafeGetTensorImpl()->version_counter();
  version.bump();
  EXPECT_THAT(message_of([&] { model.layers[0]->swapper->begin_backward(h); }),
              ::testing::HasSubstr("'decoder 0'"));
}

TEST_F(WrappersTest, AnExceptionInForwardLeavesTheInputWhole) {
  const auto all = make_all();
  FrameworkModel model(all);
  FrameworkLayer& layer = *model.layers[0];
  const LayerForward forward =
      swap_layer_input_forward_wrapper([](SwapLayer&, const LayerCall&) -> std::vector<at::Tensor> {
        throw std::runtime_error("gives up");
      });
  const at::Tensor h = at::mm(framework_batch(0), model.embedding);
  const at::Tensor before = h.detach().cpu();
  EXPECT_EQ(message_of([&] {
              checkpoint([&](const at::Tensor& in) { return forward(layer, {in}).front(); }, h);
            }),
            "gives up");
  EXPECT_THAT(layer.swapper->states(), IsEmpty());
  EXPECT_TRUE(same_bits(h.detach().cpu(), before));
}

TEST_F(WrappersTest, AGraphThatIsDroppedGivesItsHostMemoryBack) {
  const auto context = std::make_shared<SwapContext>(device());
  const auto all = std::make_shared<SwapLayerInputs>(context);
  FrameworkModel model(all);
  for (uint64_t i = 0; i < 3; ++i) {
    model.forward(framework_batch(i));
  }
  all->sweep();
  EXPECT_EQ(context->host().stats().requested_bytes, 0U);
  EXPECT_EQ(all->stats().resident_inputs, 0);
  model.forward(framework_batch(0)).backward();
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(1)));
}

TEST_F(WrappersTest, TwoModelsOneDeletedBetweenForwardAndTheOthersBackward) {
  FrameworkModel kept(make_all());
  at::Tensor loss;
  {
    FrameworkModel deleted(make_all());
    loss = kept.forward(framework_batch(0));
    deleted.forward(framework_batch(1)).backward();
  }
  loss.backward();
  EXPECT_TRUE(same_bits(kept.grads_on_cpu(), framework_grads(1)));
}

TEST_F(WrappersTest, WhatIsStillOutComesBackWhenTheSwapperEnds) {
  FrameworkModel model(make_all());
  const at::Tensor loss = model.forward(framework_batch(0));
  for (const auto& layer : model.layers) {
    layer->swapper = nullptr;
  }
  // The wrappers hold the last owner inside the layers' construction only.
  loss.backward();
  EXPECT_TRUE(same_bits(model.grads_on_cpu(), framework_grads(1)));
}

TEST_F(WrappersTest, SlicesTransposesAndExpandedInputs) {
  const auto run = [](const std::shared_ptr<SwapLayerInputs>& all) {
    std::vector<at::Tensor> results;
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> views = {
        [](const at::Tensor& t) { return t.slice(0, 3, 20); },
        [](const at::Tensor& t) { return t.t(); },
        [](const at::Tensor& t) { return t.slice(1, 0, 29, 2); },
        [](const at::Tensor& t) { return t.slice(0, 0, 1).expand({7, 29}); },
        [](const at::Tensor& t) { return t.as_strided({5, 9}, {3, 1}, 2); }};
    for (const auto& view : views) {
      SwapLayer layer;
      LayerForward forward = [](SwapLayer&, const LayerCall& call) {
        return std::vector<at::Tensor>{call.hidden_states.exp() * 2};
      };
      if (all != nullptr) {
        swap_layer_input_init_wrapper([](SwapLayer&) {}, all)(layer);
        forward = swap_layer_input_forward_wrapper(forward);
      }
      const at::Tensor x = random_tensor({29, 29}, 3).set_requires_grad(true);
      const at::Tensor base = x * 1;
      checkpoint([&](const at::Tensor& in) { return forward(layer, {in}).front(); }, view(base))
          .sum()
          .backward();
      results.push_back(x.grad().cpu());
      results.push_back(base.detach().cpu());
    }
    return results;
  };
  EXPECT_TRUE(same_bits(run(make_all()), run(nullptr)));
}

}  // namespace
}  // namespace swapline
