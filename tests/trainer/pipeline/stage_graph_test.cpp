// A graph cut into stages: the gradients of the uncut one, and no memory held for its ends.
#include "trainer/pipeline/stage_graph.h"

#include "tests/support/errors.h"
#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"

#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>

namespace swapline::trainer {
namespace {

using swapline::testing::message_of;
using swapline::testing::random_parameter;
using swapline::testing::random_tensor;
using swapline::testing::same_bits;
using ::testing::HasSubstr;

constexpr int64_t kMany = int64_t{1} << 16;
constexpr size_t kManyBytes = 4 * kMany;

struct FailsInBackward : torch::autograd::Function<FailsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw std::runtime_error("a backward gives up");
  }
};

class StageGraphTest : public swapline::testing::SimTest {
 protected:
  // Three layers with parameters of their own, one for each stage.
  struct Layers {
    std::vector<at::Tensor> weights;
    Layers() {
      for (uint64_t i = 0; i < 3; ++i) {
        weights.push_back(random_parameter({29, 29}, i));
      }
    }
    at::Tensor run(size_t i, const at::Tensor& h) const { return at::tanh(at::mm(h, weights[i])); }
    std::vector<at::Tensor> gradients() const {
      return {weights[0].grad(), weights[1].grad(), weights[2].grad()};
    }
  };
  static at::Tensor loss_of(const at::Tensor& h) { return h.square().mean(); }
  static at::Tensor ones(int64_t size) {
    return at::ones({size}, at::TensorOptions().device(device()));
  }
};

TEST_F(StageGraphTest, GradientsAreThoseOfTheUncutGraph) {
  const at::Tensor x = random_tensor({33, 29}, 7);
  const Layers uncut;
  const at::Tensor expected = loss_of(uncut.run(2, uncut.run(1, uncut.run(0, x))));
  expected.backward();

  const Layers cut;
  std::vector<StageGraph> graphs(3);
  at::Tensor h = graphs[0].leave(cut.run(0, x));
  EXPECT_FALSE(h.requires_grad());
  h = graphs[1].leave(cut.run(1, graphs[1].enter(std::move(h))));
  const at::Tensor loss = loss_of(cut.run(2, graphs[2].enter(std::move(h))));
  graphs[2].end_in_loss(loss);
  EXPECT_TRUE(same_bits(loss, expected));
  at::Tensor gradient = graphs[2].backward({});
  EXPECT_EQ(gradient.sizes(), (at::IntArrayRef{33, 29}));
  gradient = graphs[1].backward(std::move(gradient));
  EXPECT_FALSE(graphs[0].backward(std::move(gradient)).defined());  // nothing was entered
  EXPECT_TRUE(same_bits(cut.gradients(), uncut.gradients()));
}

TEST_F(StageGraphTest, SeveralMicrobatchesMayBeInFlight) {
  const Layers uncut;
  const Layers cut;
  std::vector<StageGraph> first(3);
  std::vector<StageGraph> second(3);
  for (size_t i = 0; i < 3; ++i) {
    const at::Tensor x = random_tensor({5, 29}, 20 + i);
    loss_of(uncut.run(1, uncut.run(0, x))).backward();
    second[i].end_in_loss(loss_of(cut.run(1, second[i].enter(first[i].leave(cut.run(0, x))))));
  }
  for (size_t i = 0; i < 3; ++i) {
    first[i].backward(second[i].backward({}));
  }
  EXPECT_TRUE(same_bits(cut.gradients(), uncut.gradients()));
}

TEST_F(StageGraphTest, TheInputIsNotHeld) {
  at::Tensor received = ones(kMany);
  StageGraph graph;
  at::Tensor h = graph.enter(std::move(received));
  received.reset();
  const auto with_input = sim().live_bytes();
  at::Tensor output = graph.leave(h.narrow(0, 0, 8) * 2);
  h.reset();
  EXPECT_LE(sim().live_bytes() + kManyBytes, with_input + 4096);
  const at::Tensor gradient = graph.backward(ones(8) * 3);
  EXPECT_TRUE(same_bits(gradient, at::cat({at::full({8}, 6.0F), at::zeros({kMany - 8})})));
}

TEST_F(StageGraphTest, TheOutputIsNotHeld) {
  StageGraph graph;
  at::Tensor h = graph.enter(ones(1));
  at::Tensor output = graph.leave(h.expand({kMany}) * 2);
  h.reset();
  const auto with_output = sim().live_bytes();
  output.reset();
  EXPECT_LE(sim().live_bytes() + kManyBytes, with_output);
  const at::Tensor gradient = graph.backward(ones(kMany));
  EXPECT_TRUE(same_bits(gradient, at::full({1}, 2.0F * kMany)));
}

// A stage that has nothing of its own to learn still passes gradients on.
TEST_F(StageGraphTest, TheOutputsGradientGoesWithItsUse) {
  StageGraph graph;
  at::Tensor h = graph.enter(ones(1));
  graph.leave(h.expand({kMany}) * 2);
  h.reset();
  const auto before = sim().live_bytes();
  {
    const at::Tensor gradient = graph.backward(ones(kMany));
  }
  EXPECT_LE(sim().live_bytes(), before);
}

TEST_F(StageGraphTest, AStageMayBeginAndEndInItself) {
  const Layers uncut;
  const Layers cut;
  const at::Tensor x = random_tensor({5, 29}, 3);
  loss_of(uncut.run(0, x)).backward();
  StageGraph graph;
  graph.end_in_loss(loss_of(cut.run(0, x)));
  EXPECT_FALSE(graph.backward({}).defined());
  EXPECT_TRUE(same_bits(cut.weights[0].grad(), uncut.weights[0].grad()));
}

TEST_F(StageGraphTest, AFailingBackwardLeavesNothingBehind) {
  const auto before = sim().live_bytes();
  {
    StageGraph graph;
    graph.leave(FailsInBackward::apply(graph.enter(ones(kMany)) * 2) * 3);
    EXPECT_THAT(message_of([&] { graph.backward(ones(kMany)); }), HasSubstr("a backward gives up"));
  }
  EXPECT_EQ(sim().live_bytes(), before);
}

TEST_F(StageGraphTest, AGraphWithoutItsBackwardGoesAway) {
  const auto before = sim().live_bytes();
  {
    StageGraph graph;
    graph.leave(at::tanh(graph.enter(ones(kMany))));
  }
  EXPECT_EQ(sim().live_bytes(), before);
}

}  // namespace
}  // namespace swapline::trainer
