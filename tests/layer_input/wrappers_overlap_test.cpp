// The wrappers of forward-backward overlap, around a framework in small that keeps a graph object
// for each layer's run and calls forward and backward by itself.
#include "tests/support/checkpoint_framework.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace swapline {
namespace {

using ::testing::ElementsAre;
using testing::framework_batch;
using testing::FrameworkLayer;
using ::testing::IsEmpty;
using testing::same_bits;

// Micro-batches through layers whose forwards and backwards are called one by one.
class OverlapModel {
 public:
  explicit OverlapModel(const std::shared_ptr<SwapLayerInputs>& all, int64_t num_layers = 5) {
    const LayerInit init = [](SwapLayer&) {};
    for (int64_t i = 0; i < num_layers; ++i) {
      layers.push_back(std::make_unique<FrameworkLayer>(10 * i));
      if (all != nullptr) {
        swap_layer_input_init_wrapper(init, all)(*layers.back());
      }
    }
    forward_ = [](SwapLayer& layer, const LayerCall& call) { return run(layer, call); };
    backward_ = [this](const LayerGraph& graph) { return run_backward(graph); };
    both_ = [this](SwapLayer& layer, const LayerCall& call, const LayerGraph& graph) {
      // The backward may come first: its input has to be there already.
      std::vector<at::Tensor> outputs = run_backward(graph);
      outputs.push_back(run(layer, call).front());
      return outputs;
    };
    if (all != nullptr) {
      forward_ = swap_layer_input_fboverlap_forward_wrapper(forward_);
      backward_ = swap_layer_input_fboverlap_backward_wrapper(backward_);
      both_ = swap_layer_input_fboverlap_1f1b_wrapper(both_);
    }
  }

  struct Pass {
    at::Tensor hidden_states;
    std::vector<LayerGraph> graphs;
  };

  Pass begin(uint64_t index) const { return {framework_batch(index), {}}; }
  void forward_layer(Pass& pass, bool is_recomputed = true) {
    FrameworkLayer& layer = next_layer(pass);
    at::Tensor out = forward_(layer, call_of(pass, is_recomputed)).front();
    advance(pass, layer, std::move(out));
  }
  // The gradient of the pass's newest layer's input.
  at::Tensor backward_layer(Pass& pass, at::Tensor grad) {
    grad_ = std::move(grad);
    const LayerGraph graph = std::move(pass.graphs.back());
    pass.graphs.pop_back();
    return backward_(graph).front();
  }
  at::Tensor both(Pass& forward, Pass& backward, at::Tensor grad) {
    grad_ = std::move(grad);
    const LayerGraph graph = std::move(backward.graphs.back());
    backward.graphs.pop_back();
    FrameworkLayer& layer = next_layer(forward);
    std::vector<at::Tensor> outputs = both_(layer, call_of(forward, true), graph);
    advance(forward, layer, outputs.back());
    return outputs.front();
  }
  std::vector<at::Tensor> grads_on_cpu() const {
    std::vector<at::Tensor> grads;
    for (const auto& layer : layers) {
      grads.push_back(layer->a.grad().cpu());
      grads.push_back(layer->b.grad().cpu());
    }
    return grads;
  }

  std::vector<std::unique_ptr<FrameworkLayer>> layers;

 private:
  static std::vector<at::Tensor> run(SwapLayer& layer, const LayerCall& call) {
    const c10::NoGradGuard no_grad;
    return static_cast<FrameworkLayer&>(layer).forward(layer, call);
  }
  std::vector<at::Tensor> run_backward(const LayerGraph& graph) const {
    FrameworkLayer& layer = static_cast<FrameworkLayer&>(*graph.layer);
    const at::Tensor input = graph.layer_input.detach().set_requires_grad(true);
    layer.forward(layer, {.hidden_states = input}).front().backward(grad_);
    return {input.grad()};
  }
  FrameworkLayer& next_layer(const Pass& pass) const { return *layers[pass.graphs.size()]; }
  static LayerCall call_of(const Pass& pass, bool is_recomputed) {
    return {.hidden_states = pass.hidden_states, .checkpoint = is_recomputed};
  }
  static void advance(Pass& pass, FrameworkLayer& layer, at::Tensor out) {
    pass.graphs.push_back({&layer, std::exchange(pass.hidden_states, std::move(out))});
  }

  LayerForward forward_;
  LayerBackward backward_;
  LayerForwardBackward both_;
  at::Tensor grad_;
};

// Micro-batch 0 forward, then each one's backward against the next one's forward, then the last
// backward.
std::vector<at::Tensor> overlapped(OverlapModel& model, uint64_t num_microbatches) {
  OverlapModel::Pass back = model.begin(0);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    model.forward_layer(back);
  }
  for (uint64_t index = 1; index <= num_microbatches; ++index) {
    at::Tensor grad = at::ones_like(back.hidden_states);
    OverlapModel::Pass next = model.begin(index);
    while (!back.graphs.empty()) {
      grad = index < num_microbatches ? model.both(next, back, grad)
                                      : model.backward_layer(back, grad);
    }
    back = std::move(next);
  }
  return model.grads_on_cpu();
}

class WrappersOverlapTest : public testing::SimTest {
 protected:
  void SetUp() override { use_machine({.late_copies = true, .copy_slowdown = 20}); }
  static std::shared_ptr<SwapLayerInputs> make_all(LayerInputOptions options = {}) {
    return std::make_shared<SwapLayerInputs>(std::make_shared<SwapContext>(device()),
                                             std::move(options));
  }
};

TEST_F(WrappersOverlapTest, OneForwardOneBackwardHasTheBitsOfOneWithoutSwap) {
  for (const int64_t prefetch : {0, 1, 2}) {
    const auto all = make_all({.prefetch = prefetch});
    OverlapModel model(all);
    OverlapModel plain(nullptr);
    EXPECT_TRUE(same_bits(overlapped(model, 4), overlapped(plain, 4)));
    EXPECT_EQ(all->stats().num_swapped_out, 4 * 5);
    EXPECT_EQ(all->stats().resident_inputs, 0);
  }
}

TEST_F(WrappersOverlapTest, AnInputIsLetGoWhenItsLayerHasRun) {
  const auto all = make_all();
  OverlapModel model(all);
  OverlapModel::Pass pass = model.begin(0);
  model.forward_layer(pass);
  EXPECT_THAT(model.layers[0]->swapper->states(), ElementsAre(Residency::kHost));
  model.forward_layer(pass, /*is_recomputed=*/false);
  EXPECT_THAT(model.layers[1]->swapper->states(), IsEmpty());
}

TEST_F(WrappersOverlapTest, TheOneBeforeIsThereWhenABackwardEnds) {
  const auto all = make_all();
  OverlapModel model(all);
  OverlapModel::Pass pass = model.begin(0);
  for (int i = 0; i < 4; ++i) {
    model.forward_layer(pass);
  }
  at::Tensor grad = model.backward_layer(pass, at::ones_like(pass.hidden_states));
  EXPECT_THAT(model.layers[3]->swapper->states(), IsEmpty());
  EXPECT_THAT(model.layers[2]->swapper->states(), ElementsAre(Residency::kDevice));
  EXPECT_THAT(model.layers[1]->swapper->states(), ElementsAre(Residency::kHost));
  OverlapModel::Pass next = model.begin(1);
  model.both(next, pass, grad);
  EXPECT_THAT(model.layers[0]->swapper->states(), ElementsAre(Residency::kHost, Residency::kHost));
  EXPECT_THAT(model.layers[1]->swapper->states(), ElementsAre(Residency::kDevice));
}

TEST_F(WrappersOverlapTest, LayersWithoutASwapperOnEitherSide) {
  for (const size_t without : {0U, 2U, 4U}) {
    OverlapModel model(make_all());
    model.layers[without]->swapper = nullptr;
    OverlapModel plain(nullptr);
    EXPECT_TRUE(same_bits(overlapped(model, 3), overlapped(plain, 3)));
  }
}

TEST_F(WrappersOverlapTest, AForwardWithNoBackwardBesideIt) {
  const auto all = make_all();
  const LayerForwardBackward both = swap_layer_input_fboverlap_1f1b_wrapper(
      [](SwapLayer& layer, const LayerCall& call, const LayerGraph&) {
        return static_cast<FrameworkLayer&>(layer).forward(layer, call);
      });
  FrameworkLayer layer(1);
  swap_layer_input_init_wrapper([](SwapLayer&) {}, all)(layer);
  const at::Tensor h = framework_batch(0);
  both(layer, {.hidden_states = h, .checkpoint = true}, {});
  EXPECT_THAT(layer.swapper->states(), ElementsAre(Residency::kHost));
  layer.swapper->begin_backward(h);
  EXPECT_TRUE(same_bits(h, framework_batch(0)));
}

TEST_F(WrappersOverlapTest, AnInputAskedForTooLateIsStillRight) {
  const auto all = make_all();
  OverlapModel model(all);
  OverlapModel plain(nullptr);
  const auto run = [](OverlapModel& each) {
    std::vector<OverlapModel::Pass> passes;
    for (uint64_t index = 0; index < 3; ++index) {
      passes.push_back(each.begin(index));
      for (size_t i = 0; i < each.layers.size(); ++i) {
        each.forward_layer(passes.back());
      }
    }
    for (const size_t index : {1U, 2U, 0U}) {
      at::Tensor grad = at::ones_like(passes[index].hidden_states);
      while (!passes[index].graphs.empty()) {
        grad = each.backward_layer(passes[index], grad);
      }
    }
    return each.grads_on_cpu();
  };
  EXPECT_TRUE(same_bits(run(model), run(plain)));
}

// A backward, alone or beside a forward, throws: the input before it is on its way in, and stays so
// until its own backward asks for it, or until the pass is dropped.
TEST_F(WrappersOverlapTest, AnExceptionBesideAPrefetchLeaksNothing) {
  for (const bool is_beside_forward : {false, true}) {
    for (const bool is_dropped : {false, true}) {
      const auto context = std::make_shared<SwapContext>(device());
      const auto all = std::make_shared<SwapLayerInputs>(context);
      const size_t allocated = sim().memory_stats(0).allocated_bytes;
      {
        OverlapModel model(all);
        OverlapModel plain(nullptr);
        OverlapModel::Pass pass = model.begin(0);
        OverlapModel::Pass expected = plain.begin(0);
        for (int i = 0; i < 4; ++i) {
          model.forward_layer(pass);
          plain.forward_layer(expected);
        }
        const at::Tensor input = pass.graphs.back().layer_input;
        const auto gives_up = []() -> std::vector<at::Tensor> {
          throw std::runtime_error("gives up");
        };
        const LayerGraph graph = pass.graphs.back();
        const std::string message = testing::message_of([&] {
          if (is_beside_forward) {
            const at::Tensor h = framework_batch(9);
            swap_layer_input_fboverlap_1f1b_wrapper(
                [&](SwapLayer&, const LayerCall&, const LayerGraph&) { return gives_up(); })(
                *model.layers[0], {.hidden_states = h, .checkpoint = true}, graph);
          } else {
            swap_layer_input_fboverlap_backward_wrapper(
                [&](const LayerGraph&) { return gives_up(); })(graph);
          }
        });
        EXPECT_EQ(message, "gives up");
        EXPECT_THAT(model.layers[2]->swapper->states(), ElementsAre(Residency::kSwappingIn));
        EXPECT_THAT(model.layers[3]->swapper->states(), IsEmpty());
        if (!is_dropped) {
          // Tried again: the input is there, and the rest goes on as ever.
          at::Tensor grad = at::ones_like(pass.hidden_states);
          at::Tensor expected_grad = at::ones_like(expected.hidden_states);
          while (!pass.graphs.empty()) {
            grad = model.backward_layer(pass, grad);
            expected_grad = plain.backward_layer(expected, expected_grad);
          }
          EXPECT_TRUE(same_bits(grad, expected_grad));
        }
      }
      all->sweep();
      EXPECT_EQ(all->stats().resident_inputs, 0);
      EXPECT_EQ(context->host().stats().requested_bytes, 0U);
      sim().synchronize_device(0);
      context->settle_done();
      EXPECT_EQ(context->pending_release_bytes(), 0U);
      EXPECT_EQ(sim().memory_stats(0).allocated_bytes, allocated);
    }
  }
}

}  // namespace
}  // namespace swapline
