// A layer with experts cut in pieces, its experts shared by several ranks: the whole layer's bits.
#include "tests/trainer/models/tiny_deepseek.h"

#include <numeric>

namespace swapline::trainer {
namespace {

constexpr int64_t kSeqLen = 16;
constexpr size_t kLayer = 1;  // the first one with experts

class DeepseekV3Ranks : public testing::Test {
 protected:
  TinyDeepseek make(ExpertShard shard, bool force_load_balance = false) {
    return TinyDeepseek(*cpu_, tiny_deepseek(), {kSeqLen, shard, force_load_balance});
  }
  static at::Tensor some_input() { return at::randn({2, kSeqLen, 32}); }

  std::unique_ptr<Device> cpu_ = cpu_device();
};

// Each rank with its own tokens; every rank's rows go to the rank that has their expert.
struct Ranks {
  std::vector<std::unique_ptr<TinyDeepseek>> models;

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs, bool again = false) const {
    std::vector<AttendedAtOnce> attended;
    for (size_t rank = 0; rank < models.size(); ++rank) {
      const ExpertLayer& layer = models[rank]->expert_layer(kLayer);
      attended.push_back(attend(layer, inputs[rank], /*counts=*/!again));
    }
    std::vector<at::Tensor> returned = processed(attended);
    std::vector<at::Tensor> outputs;
    for (size_t rank = 0; rank < models.size(); ++rank) {
      outputs.push_back(models[rank]->expert_layer(kLayer).merge(
          attended[rank].residual, returned[rank], attended[rank].places));
    }
    return outputs;
  }

 private:
  std::vector<at::Tensor> processed(const std::vector<AttendedAtOnce>& attended) const {
    const size_t num_ranks = models.size();
    const size_t num_here = attended[0].counts.size() / num_ranks;
    std::vector<std::vector<at::Tensor>> back(num_ranks);
    std::vector<int64_t> begins(num_ranks);
    for (size_t owner = 0; owner < num_ranks; ++owner) {
      // By expert, of each one rank by rank; and which (rank, row) each row is.
      std::vector<at::Tensor> tokens;
      std::vector<at::Tensor> weights;
      std::vector<int64_t> totals;
      std::vector<std::vector<int64_t>> places(num_ranks);
      int64_t place = 0;
      for (size_t expert = owner * num_here; expert < (owner + 1) * num_here; ++expert) {
        int64_t total = 0;
        for (size_t source = 0; source < num_ranks; ++source) {
          const int64_t count = attended[source].counts[expert];
          tokens.push_back(attended[source].tokens.narrow(0, begins[source], count));
          weights.push_back(attended[source].weights.narrow(0, begins[source], count));
          begins[source] += count;
          total += count;
          for (int64_t row = 0; row < count; ++row) {
            places[source].push_back(place++);
          }
        }
        totals.push_back(total);
      }
      const at::Tensor done =
          models[owner]->expert_layer(kLayer).experts(at::cat(tokens), at::cat(weights), totals);
      for (size_t source = 0; source < num_ranks; ++source) {
        back[source].push_back(
            done.index_select(0, at::tensor(places[source], at::TensorOptions().dtype(at::kLong))));
      }
    }
    std::vector<at::Tensor> returned;
    for (const std::vector<at::Tensor>& pieces : back) {
      returned.push_back(at::cat(pieces));
    }
    return returned;
  }
};

TEST_F(DeepseekV3Ranks, PiecesOnOneTwoAndFourRanksAreTheLayer) {
  for (const bool force : {false, true}) {
    for (const int64_t count : {1, 2, 4}) {
      SCOPED_TRACE(count);
      Ranks ranks;
      std::vector<at::Tensor> inputs;
      for (int64_t index = 0; index < count; ++index) {
        ranks.models.push_back(std::make_unique<TinyDeepseek>(
            *cpu_, tiny_deepseek(), DeepseekV3Options{kSeqLen, ExpertShard{index, count}, force}));
        inputs.push_back(some_input().requires_grad_());
      }
      const TinyDeepseek whole = make({}, force);
      const std::vector<at::Tensor> outputs = ranks.run(inputs);
      EXPECT_TRUE(outputs[0].equal(ranks.run(inputs, /*again=*/true)[0]));
      const std::string name = "layers.1.moe.experts.w2";
      at::Tensor gradient = at::zeros({8, 32, 16});
      for (int64_t index = 0; index < count; ++index) {
        const at::Tensor expected =
            whole.model.layers()[kLayer]->forward(inputs[index], PartRunner());
        EXPECT_TRUE(outputs[index].equal(expected)) << (outputs[index] - expected).abs().max();
        const at::Tensor upstream = at::randn_like(expected);
        expected.backward(upstream);
        const at::Tensor of_whole = inputs[index].grad().clone();
        inputs[index].mutable_grad() = at::Tensor();
        outputs[index].backward(upstream, /*keep_graph=*/true);
        EXPECT_TRUE(at::allclose(inputs[index].grad(), of_whole, 1e-4, 1e-6));
      }
      for (int64_t index = 0; index < count; ++index) {
        gradient.narrow(0, index * 8 / count, 8 / count)
            .copy_(ranks.models[static_cast<size_t>(index)]->parameter(name).grad());
      }
      EXPECT_TRUE(at::allclose(gradient, whole.parameter(name).grad(), 1e-4, 1e-6));
    }
  }
}

TEST_F(DeepseekV3Ranks, ExpertsThatRanksCannotShareAreRefused) {
  try {
    make({0, 3});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--parallelism.expert-parallel-degree: found 3"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(DeepseekV3Ranks, ShardsAreRowsOfTheWhole) {
  const TinyDeepseek whole = make({});
  const TinyDeepseek last = make({3, 4});
  for (size_t i = 0; i < whole.factory.parameters().size(); ++i) {
    const NamedParameter& all = whole.factory.parameters()[i];
    const NamedParameter& some = last.factory.parameters()[i];
    EXPECT_EQ(all.name, some.name);
    EXPECT_EQ(some.is_sharded, all.name.find("moe.experts.") != std::string::npos);
    EXPECT_TRUE(some.tensor.equal(some.is_sharded ? all.tensor.narrow(0, 6, 2) : all.tensor))
        << all.name;
  }
}

}  // namespace
}  // namespace swapline::trainer
