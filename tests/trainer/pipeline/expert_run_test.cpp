// A layer run in pieces on lanes that share its experts, against the whole layer on one device.
#include "trainer/pipeline/expert_run.h"

#include "tests/trainer/models/tiny_deepseek.h"
#include "tests/trainer/parallel/devices_test.h"
#include "trainer/parallel/lanes.h"

#include <utility>

#include <c10/core/GradMode.h>

namespace swapline::trainer {
namespace {

using swapline::testing::same_bits;

constexpr int64_t kSeqLen = 16;
constexpr size_t kLayer = 1;  // the first one with experts

// All on the CPU; gradients of parameters by lane and name.
struct RunResult {
  PerLane outputs;
  PerLane input_gradients;
  std::vector<std::vector<NamedParameter>> gradients;
};

std::vector<NamedParameter> gradients_of(const TinyDeepseek& tiny) {
  std::vector<NamedParameter> gradients;
  for (NamedParameter parameter : tiny.factory.parameters()) {
    if (parameter.name.find("layers.1.") == 0) {
      parameter.tensor = parameter.tensor.grad().cpu();
      gradients.push_back(parameter);
    }
  }
  return gradients;
}

ExpertRun::Arrived sent(const Lanes& lanes, Shipment shipment) {
  return lanes.exchange({std::move(shipment)}).wait().front();
}

class ExpertRunTest : public DevicesTest {
 protected:
  void TearDown() override {
    counts_.clear();
    pools_.clear();
    DevicesTest::TearDown();
  }
  at::Tensor input(size_t device, size_t lane) {
    return random_on(device, {2, kSeqLen, 32}, 100 + lane);
  }
  at::Tensor upstream(size_t device, size_t lane) {
    return random_on(device, {2, kSeqLen, 32}, 200 + lane);
  }
  const std::vector<CountCopies>& counts(size_t num_lanes) {
    while (counts_.size() < num_lanes) {
      Device& device = device_at(counts_.size());
      pools_.push_back(std::make_unique<HostPool>(device.torch_device()));
      pools_.back()->reserve(512);  // its memory is there from now on
      counts_.emplace_back(device, *pools_.back());
    }
    return counts_;
  }
  std::unique_ptr<TinyDeepseek> model(size_t device, ExpertShard shard) {
    return std::make_unique<TinyDeepseek>(
        device_at(device), tiny_deepseek(), DeepseekV3Options{kSeqLen, shard, is_forced_});
  }

  RunResult run_in_pieces(size_t num_lanes, bool recomputes) {
    std::vector<std::unique_ptr<TinyDeepseek>> models;
    LayerOnLanes layer;
    const Lanes forward(first_devices(num_lanes), "forward");
    const Lanes backward(first_devices(num_lanes), "backward");
    layer.counts = &counts(num_lanes);
    layer.recomputes = recomputes;
    PerLane inputs;
    PerLane upstreams;
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      models.push_back(model(lane, {static_cast<int64_t>(lane), static_cast<int64_t>(num_lanes)}));
      layer.layers.push_back(&models.back()->expert_layer(kLayer));
      inputs.push_back(input(lane, lane));
      upstreams.push_back(upstream(lane, lane));
    }
    ExpertRun run(layer);
    run.route(inputs);
    RunResult result;
    for (const at::Tensor& output :
         run.merge(sent(forward, run.experts(sent(forward, run.attend()))))) {
      EXPECT_FALSE(output.requires_grad());
      result.outputs.push_back(output.cpu());
    }
    run.attend_again(recomputes ? std::move(inputs) : PerLane());
    const auto at_experts = sent(backward, run.send_gradients(upstreams));
    for (const at::Tensor& gradient :
         run.attend_backward(sent(backward, run.experts_backward(at_experts)))) {
      result.input_gradients.push_back(gradient.cpu());
    }
    for (const auto& each : models) {
      result.gradients.push_back(gradients_of(*each));
    }
    return result;
  }

  // All lanes' inputs, one after the other, by ordinary autograd.
  RunResult run_whole(size_t num_lanes) {
    const auto whole = model(0, {});
    RunResult result;
    for (size_t lane = 0; lane < num_lanes; ++lane) {
      const at::Tensor leaf = input(0, lane).requires_grad_();
      const at::Tensor output = whole->expert_layer(kLayer).forward(leaf, PartRunner());
      output.backward(upstream(0, lane));
      result.outputs.push_back(output.detach().cpu());
      result.input_gradients.push_back(leaf.grad().cpu());
    }
    result.gradients.push_back(gradients_of(*whole));
    return result;
  }

  bool is_forced_ = false;

 private:
  std::vector<std::unique_ptr<HostPool>> pools_;
  std::vector<CountCopies> counts_;
};

// Rounding: a row's product does not depend on the rows beside it, but gradients of weights add up
// over all lanes' rows at once, and those of inputs in another order.
void expect_close(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::allclose(found, expected, 1e-5, 1e-6))
      << what << ": off by " << (found - expected).abs().max().item<float>() << " of "
      << expected.abs().max().item<float>();
}

TEST_F(ExpertRunTest, RunningAgainHasTheBitsOfKeeping) {
  for (const bool forced : {false, true}) {
    is_forced_ = forced;
    for (const size_t num_lanes : {1, 2, 4}) {
      SCOPED_TRACE(num_lanes);
      const RunResult again = run_in_pieces(num_lanes, /*recomputes=*/true);
      const RunResult kept = run_in_pieces(num_lanes, /*recomputes=*/false);
      EXPECT_TRUE(same_bits(again.outputs, kept.outputs));
      EXPECT_TRUE(same_bits(again.input_gradients, kept.input_gradients));
      for (size_t lane = 0; lane < num_lanes; ++lane) {
        for (size_t i = 0; i < kept.gradients[lane].size(); ++i) {
          EXPECT_TRUE(same_bits(again.gradients[lane][i].tensor, kept.gradients[lane][i].tensor))
              << kept.gradients[lane][i].name;
        }
      }
    }
  }
}

TEST_F(ExpertRunTest, PiecesAreTheWholeLayer) {
  for (const bool forced : {false, true}) {
    is_forced_ = forced;
    for (const size_t num_lanes : {1, 2, 4}) {
      SCOPED_TRACE(num_lanes);
      const RunResult found = run_in_pieces(num_lanes, /*recomputes=*/true);
      const RunResult whole = run_whole(num_lanes);
      EXPECT_TRUE(same_bits(found.outputs, whole.outputs));
      for (size_t lane = 0; lane < num_lanes; ++lane) {
        expect_close(found.input_gradients[lane], whole.input_gradients[lane], "input");
      }
      for (size_t i = 0; i < whole.gradients[0].size(); ++i) {
        std::vector<at::Tensor> of_lanes;
        for (size_t lane = 0; lane < num_lanes; ++lane) {
          of_lanes.push_back(found.gradients[lane][i].tensor);
        }
        const at::Tensor together =
            found.gradients[0][i].is_sharded ? at::cat(of_lanes) : at::stack(of_lanes).sum(0);
        expect_close(together, whole.gradients[0][i].tensor, whole.gradients[0][i].name);
      }
    }
  }
}

// Of a layer's run nothing stays but what its backward needs: with recompute, the counts.
TEST_F(ExpertRunTest, ARecomputedLayerKeepsNothingOnTheDevices) {
  const auto first = model(0, {0, 2});
  const auto second = model(1, {1, 2});
  const Lanes lanes(first_devices(2), "test");
  PerLane inputs = {input(0, 0), input(1, 1)};
  ExpertRun run({{&first->expert_layer(kLayer), &second->expert_layer(kLayer)},
                 &counts(2),
                 /*recomputes=*/true});
  const auto before = sim().live_bytes();
  run.route(inputs);
  run.merge(sent(lanes, run.experts(sent(lanes, run.attend()))));
  EXPECT_EQ(sim().live_bytes(), before);
}

// A forward of one micro-batch and the backward of another, as stages run them: each one's tokens
// under way while the other computes, or both ways together.
TEST_F(ExpertRunTest, AForwardAndABackwardMayRunAgainstEachOther) {
  const RunResult alone = run_in_pieces(2, /*recomputes=*/true);
  const auto first = model(0, {0, 2});
  const auto second = model(1, {1, 2});
  const Lanes forward(first_devices(2), "forward");
  const Lanes backward(first_devices(2), "backward");
  const LayerOnLanes layer = {
      {&first->expert_layer(kLayer), &second->expert_layer(kLayer)}, &counts(2), true};
  const PerLane inputs = {input(0, 0), input(1, 1)};
  for (const bool together : {false, true}) {
    SCOPED_TRACE(together);
    ExpertRun earlier(layer);
    ExpertRun later(layer);
    const auto travelled = [&](Shipment going_forward, Shipment going_backward) {
      if (together) {
        return forward.exchange({std::move(going_forward), std::move(going_backward)}).wait();
      }
      Exchange first_way = forward.exchange({std::move(going_forward)});
      Exchange second_way = backward.exchange({std::move(going_backward)});
      return std::vector{first_way.wait().front(), second_way.wait().front()};
    };
    earlier.route(inputs);
    earlier.merge(sent(forward, earlier.experts(sent(forward, earlier.attend()))));
    later.route(inputs);
    earlier.attend_again(inputs);
    auto arrived =
        travelled(later.attend(), earlier.send_gradients({upstream(0, 0), upstream(1, 1)}));
    arrived = travelled(later.experts(arrived[0]), earlier.experts_backward(arrived[1]));
    const PerLane outputs = later.merge(arrived[0]);
    const PerLane gradients = earlier.attend_backward(arrived[1]);
    for (size_t lane = 0; lane < 2; ++lane) {
      EXPECT_TRUE(same_bits(outputs[lane], alone.outputs[lane]));
      EXPECT_TRUE(same_bits(gradients[lane], alone.input_gradients[lane]));
    }
  }
}

TEST_F(ExpertRunTest, ARunThatIsGivenUpGoesAway) {
  const auto first = model(0, {0, 2});
  const auto second = model(1, {1, 2});
  const Lanes lanes(first_devices(2), "test");
  counts(2);
  const auto before = sim().live_bytes();
  for (const auto& [recomputes, is_routed_only] :
       {std::pair(true, false), std::pair(false, false), std::pair(true, true)}) {
    ExpertRun run(
        {{&first->expert_layer(kLayer), &second->expert_layer(kLayer)}, &counts(2), recomputes});
    run.route({input(0, 0), input(1, 1)});
    if (is_routed_only) {
      continue;
    }
    const Exchange under_way = lanes.exchange({run.experts(sent(lanes, run.attend()))});
  }
  EXPECT_EQ(sim().live_bytes(), before);
}

}  // namespace
}  // namespace swapline::trainer
