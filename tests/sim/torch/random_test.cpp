// Random numbers and mixed precision: seeds, states, generators, autocast.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <ATen/autocast_mode.h>

namespace swapline::testing {
namespace {

class RandomTest : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    at::manual_seed(1);
  }
  static at::Tensor draw() { return at::rand({50}, at::TensorOptions().device(device())).cpu(); }
  static at::Generator generator() { return at::globalContext().defaultGenerator(device()); }
};

TEST_F(RandomTest, SameSeedGivesTheSameNumbers) {
  const auto numbers = [](uint64_t seed) -> Tensors {
    at::manual_seed(seed);
    const auto options = at::TensorOptions().device(device());
    at::Tensor x = at::empty({20}, options);
    return {at::rand({20}, options).cpu(),
            at::randn({20}, options).cpu(),
            at::randint(100, {20}, options).cpu(),
            at::randperm(20, options.dtype(at::kLong)).cpu(),
            x.normal_().cpu(),
            x.uniform_(-1, 1).cpu(),
            x.exponential_().cpu(),
            x.random_().cpu(),
            at::bernoulli(at::full({20}, 0.5, options)).cpu(),
            at::multinomial(at::ones({20}, options), 5).cpu(),
            at::dropout(at::ones({20}, options), 0.5, true).cpu(),
            std::get<0>(at::native_dropout(at::ones({20}, options), 0.5, true)).cpu(),
            at::rand_like(x).cpu(),
            at::randn_like(x).cpu()};
  };
  const Tensors first = numbers(5);
  const Tensors again = numbers(5);
  const Tensors other = numbers(6);
  EXPECT_TRUE(same_bits(first, again));
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_FALSE(at::equal(first[i], other[i])) << i;
  }
}

TEST_F(RandomTest, SuccessiveDrawsDiffer) {
  EXPECT_FALSE(at::equal(draw(), draw()));
}

TEST_F(RandomTest, NumbersLookRandom) {
  const auto options = at::TensorOptions().device(device());
  const at::Tensor x = at::randn({100000}, options).cpu();
  EXPECT_NEAR(x.mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(x.std().item<double>(), 1, 0.02);
  EXPECT_NEAR(at::dropout(at::ones({100000}, options), 0.3, true).count_nonzero().item<double>(),
              70000,
              1000);
}

TEST_F(RandomTest, RestoredStateReplaysDropout) {
  const at::Tensor x = at::ones({40}, device());
  draw();
  at::Generator rng = generator();
  const at::Tensor state = rng.get_state();
  EXPECT_EQ(state.nbytes(), 16U) << "{seed, offset}, as distributed tensors want it";
  const at::Tensor first = at::dropout(x, 0.5, true).cpu();
  const at::Tensor second = at::dropout(x, 0.5, true).cpu();
  EXPECT_FALSE(at::equal(first, second));
  rng.set_state(state);
  EXPECT_TRUE(at::equal(at::dropout(x, 0.5, true).cpu(), first));
  EXPECT_TRUE(at::equal(at::dropout(x, 0.5, true).cpu(), second));
}

TEST_F(RandomTest, OperatorsWithoutAGeneratorArgumentReplayToo) {
  const at::Tensor x = at::ones({40}, device());
  at::Generator rng = generator();
  const at::Tensor state = rng.get_state();
  const auto masks = [&] { return std::get<1>(at::native_dropout(x, 0.5, true)).cpu(); };
  const at::Tensor first = masks();
  EXPECT_FALSE(at::equal(first, masks()));
  rng.set_state(state);
  EXPECT_TRUE(at::equal(first, masks()));
}

TEST_F(RandomTest, ForeignStateIsRefused) {
  at::Generator rng = generator();
  EXPECT_THROW(rng.set_state(at::zeros({5}, at::kByte)), c10::Error);
}

TEST_F(RandomTest, ExplicitGeneratorIsUsedAndTheDefaultLeftAlone) {
  const auto options = at::TensorOptions().device(device());
  at::Generator mine = at::globalContext().getAcceleratorHooksInterface().getNewGenerator(0);
  mine.set_current_seed(9);
  const at::Tensor before = generator().get_state();
  const at::Tensor first = at::rand({20}, mine, options).cpu();
  EXPECT_TRUE(at::equal(generator().get_state(), before));
  mine.set_current_seed(9);
  EXPECT_TRUE(at::equal(at::rand({20}, mine, options).cpu(), first));
  EXPECT_FALSE(at::equal(at::rand({20}, mine, options).cpu(), first));
}

TEST_F(RandomTest, ClonedGeneratorGoesOnAlone) {
  const auto options = at::TensorOptions().device(device());
  at::Generator rng = generator();
  at::Generator copy = rng.clone();
  EXPECT_TRUE(at::equal(copy.get_state(), rng.get_state()));
  const at::Tensor first = at::rand({50}, copy, options).cpu();
  EXPECT_FALSE(at::equal(copy.get_state(), rng.get_state()));
  EXPECT_TRUE(at::equal(draw(), first));
}

TEST_F(RandomTest, CpuGeneratorIsUntouched) {
  const at::Tensor before = at::globalContext().defaultGenerator(at::kCPU).get_state();
  const at::Tensor x = at::ones({40}, device());
  draw();
  at::dropout(x, 0.5, true);
  at::native_dropout(x, 0.5, true);
  at::randperm(20, at::TensorOptions().device(device()).dtype(at::kLong));
  at::bernoulli(x * 0.5);
  EXPECT_TRUE(at::equal(at::globalContext().defaultGenerator(at::kCPU).get_state(), before));
}

TEST_F(RandomTest, DevicesHaveTheirOwnGenerators) {
  const at::Tensor before = generator().get_state();
  at::rand({20}, at::TensorOptions().device(device(1)));
  EXPECT_TRUE(at::equal(generator().get_state(), before));
}

class AutocastTest : public SimTest {
 protected:
  void SetUp() override {
    SimTest::SetUp();
    at::autocast::set_autocast_enabled(at::kPrivateUse1, true);
    at::autocast::set_autocast_dtype(at::kPrivateUse1, at::kBFloat16);
  }
  void TearDown() override {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kPrivateUse1, false);
    SimTest::TearDown();
  }
};

TEST_F(AutocastTest, ProductsRunInBfloat16AndReductionsInFp32) {
  const at::Tensor x = on_cpu({8, 16}, 1);
  const at::Tensor w = on_cpu({16, 4}, 2);
  const at::Tensor there = at::mm(x.to(device()), w.to(device()));
  EXPECT_EQ(there.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(there.cpu(), at::mm(x.to(at::kBFloat16), w.to(at::kBFloat16))));
  EXPECT_EQ(at::softmax(there, -1).scalar_type(), at::kFloat);
  EXPECT_EQ(at::cross_entropy_loss(
                there, at::zeros({8}, at::TensorOptions().device(device()).dtype(at::kLong)))
                .scalar_type(),
            at::kFloat);
  EXPECT_EQ((there + 1).scalar_type(), at::kBFloat16);
  EXPECT_EQ(at::cat({there, there.to(at::kFloat)}).scalar_type(), at::kFloat);
}

TEST_F(AutocastTest, GradientsArriveInTheParametersType) {
  const at::Tensor x = on_cpu({8, 16}, 1).to(device());
  at::Tensor w = on_cpu({16, 4}, 2).to(device()).requires_grad_();
  at::mm(x, w).sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
  w.mutable_grad() = at::Tensor();
}

TEST_F(AutocastTest, CpuIsNotAffected) {
  EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace swapline::testing
