// Dry runs: a model that no machine holds, and a small one that costs what its real run costs.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

#include <string>

#include <c10/core/GradMode.h>

namespace swapline::testing {
namespace {

struct Shape {
  int64_t layers = 2;
  int64_t width = 32;
  int64_t hidden = 96;
  int64_t heads = 4;
  int64_t vocabulary = 50;
  int64_t batch = 2;
  int64_t length = 12;
};

struct Figures {
  std::vector<std::vector<int64_t>> shapes;
  int64_t parameter_bytes = 0;
  sim::Nanos host = 0;
  sim::Nanos stream = 0;
  int64_t ops = 0;
  int64_t copies = 0;
  size_t peak = 0;
  size_t reserved = 0;

  bool operator==(const Figures&) const = default;
};

// A Llama-like model on the device, trained for one step.
class Model {
 public:
  explicit Model(const Shape& shape) : shape_(shape) {
    const int64_t c = shape.width;
    add({shape.vocabulary, c});
    for (int64_t i = 0; i < shape.layers; ++i) {
      for (const auto& sizes : std::vector<std::vector<int64_t>>{{c},
                                                                 {c, c},
                                                                 {c / 2, c},
                                                                 {c / 2, c},
                                                                 {c, c},
                                                                 {c},
                                                                 {shape.hidden, c},
                                                                 {shape.hidden, c},
                                                                 {c, shape.hidden}}) {
        add(sizes);
      }
    }
    add({c});
    add({shape.vocabulary, c});
  }

  Figures run_step() {
    const auto ints = at::TensorOptions().dtype(at::kLong);
    const at::Tensor tokens = at::zeros({shape_.batch, shape_.length + 1}, ints).to(sim::device());
    const at::Tensor loss = forward(tokens.slice(1, 0, shape_.length), tokens.slice(1, 1));
    loss.backward();
    step();
    loss.item<double>();
    Figures figures;
    figures.shapes.push_back(loss.sizes().vec());
    for (at::Tensor& parameter : parameters_) {
      figures.shapes.push_back(parameter.grad().sizes().vec());
      figures.shapes.push_back(parameter.grad().strides().vec());
      figures.parameter_bytes += static_cast<int64_t>(parameter.nbytes());
      parameter.mutable_grad() = at::Tensor();
    }
    figures.host = sim::simulator().host_time(0);
    figures.stream = sim::simulator().stream_time(0, 0);
    figures.ops = sim::simulator().counters(0).num_ops;
    figures.copies =
        sim::simulator().counters(0).num_copies_in + sim::simulator().counters(0).num_copies_out;
    figures.peak = sim::simulator().memory_stats(0).peak_allocated_bytes;
    figures.reserved = sim::simulator().memory_stats(0).peak_reserved_bytes;
    return figures;
  }

 private:
  void add(const std::vector<int64_t>& sizes) {
    at::Tensor parameter = at::empty(sizes, sim::device());
    parameter.normal_(0, 0.1);
    parameters_.push_back(parameter.requires_grad_());
  }

  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) const {
    at::Tensor h = at::embedding(parameters_[0], tokens);
    const at::Tensor angles =
        at::outer(at::arange(shape_.length, h.options()),
                  at::arange(shape_.width / shape_.heads / 2, h.options()) * -0.1);
    const at::Tensor turn = at::polar(at::ones_like(angles), angles);
    for (int64_t i = 0; i < shape_.layers; ++i) {
      h = layer(&parameters_[1 + 9 * i], h, turn);
    }
    h = at::rms_norm(h, {shape_.width}, parameters_[parameters_.size() - 2], 1e-5);
    const at::Tensor logits = at::linear(h, parameters_.back());
    return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  }

  at::Tensor layer(const at::Tensor* p, const at::Tensor& h, const at::Tensor& turn) const {
    const at::Tensor n = at::rms_norm(h, {shape_.width}, p[0], 1e-5);
    const auto heads = [&](const at::Tensor& x, int64_t count) {
      return x.view({shape_.batch, shape_.length, count, shape_.width / shape_.heads})
          .transpose(1, 2);
    };
    const auto rotate = [&](const at::Tensor& x) {
      const at::Tensor pairs =
          at::view_as_complex(x.reshape({x.size(0), x.size(1), x.size(2), -1, 2}));
      return at::view_as_real(pairs * turn).flatten(3);
    };
    const at::Tensor q = rotate(heads(at::linear(n, p[1]), shape_.heads));
    const at::Tensor k = rotate(heads(at::linear(n, p[2]), shape_.heads / 2));
    const at::Tensor v = heads(at::linear(n, p[3]), shape_.heads / 2);
    const at::Tensor a =
        at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, {}, /*enable_gqa=*/true);
    const at::Tensor y = h + at::linear(a.transpose(1, 2).reshape(h.sizes()), p[4]);
    const at::Tensor m = at::rms_norm(y, {shape_.width}, p[5], 1e-5);
    return y + at::linear(at::silu(at::linear(m, p[6])) * at::linear(m, p[7]), p[8]);
  }

  void step() {
    const c10::NoGradGuard no_grad;
    Tensors values;
    Tensors grads;
    Tensors first;
    Tensors second;
    Tensors steps;
    for (at::Tensor& parameter : parameters_) {
      values.push_back(parameter.detach());
      grads.push_back(parameter.grad());
      first.push_back(at::zeros_like(values.back()));
      second.push_back(at::zeros_like(values.back()));
      steps.push_back(at::ones({}, sim::device()));
    }
    const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(grads)));
    at::_foreach_mul_(grads, (1.0 / (norm + 1e-6)).clamp_max(1.0));
    at::_fused_adamw_(
        values, grads, first, second, {}, steps, 1e-3, 0.9, 0.95, 0.1, 1e-8, false, false);
  }

  Shape shape_;
  Tensors parameters_;
};

class DryRunTest : public SimTest {
 protected:
  static void use_dry_machine(size_t capacity_bytes = 0) {
    sim::SimulatorOptions options = machine({.capacity_bytes = capacity_bytes});
    options.dry_run = true;
    sim::configure(options);
  }
  static Figures run(const Shape& shape) {
    Model model(shape);
    return model.run_step();
  }
  static at::Tensor some(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device()));
  }
};

TEST_F(DryRunTest, SmallModelCostsWhatItsRealRunCosts) {
  for (const int64_t length : {12, 33}) {
    const Shape shape{.length = length};
    use_machine();
    const Figures real = run(shape);
    use_dry_machine();
    const Figures dry = run(shape);
    EXPECT_EQ(dry.shapes, real.shapes);
    EXPECT_EQ(dry.ops, real.ops);
    EXPECT_EQ(dry.copies, real.copies);
    EXPECT_EQ(dry.stream, real.stream);
    EXPECT_EQ(dry.host, real.host);
    EXPECT_EQ(dry.peak, real.peak);
    EXPECT_EQ(dry.reserved, real.reserved);
    EXPECT_GT(dry.ops, 100);
  }
}

TEST_F(DryRunTest, ModelOfAHundredGigabytesTrainsWithoutMemory) {
  use_dry_machine(size_t{2} << 40);
  const Shape shape{.layers = 6,
                    .width = 16384,
                    .hidden = 4 * 16384,
                    .heads = 128,
                    .vocabulary = 100000,
                    .batch = 1,
                    .length = 4096};
  const Figures figures = run(shape);
  EXPECT_GT(figures.parameter_bytes, 100e9);
  EXPECT_GT(figures.peak, 4U * static_cast<size_t>(figures.parameter_bytes));
  EXPECT_EQ(figures.shapes[1], (std::vector<int64_t>{100000, 16384}));
}

TEST_F(DryRunTest, ModelThatDoesNotFitRunsOutOfMemory) {
  use_dry_machine(size_t{64} << 20);
  EXPECT_THROW(run({.layers = 2, .width = 2048, .hidden = 4096}), c10::OutOfMemoryError);
}

TEST_F(DryRunTest, ShapesThatDependOnDataAreRefusedNamingTheOperator) {
  use_dry_machine();
  const at::Tensor x = some({4, 5});
  for (const auto& [name, work] : std::vector<std::pair<std::string, std::function<void()>>>{
           {"nonzero", [&] { at::nonzero(x); }},
           {"masked_select", [&] { x.masked_select(x > 0); }},
           {"unique", [&] { at::_unique2(x); }}}) {
    const std::string text = message_of(work);
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_NE(text.find("cannot be dry-run"), std::string::npos) << text;
  }
}

TEST_F(DryRunTest, ItemIsZero) {
  use_dry_machine();
  EXPECT_EQ(some({}).item<double>(), 0);
  EXPECT_EQ(some({}, at::kLong).item<int64_t>(), 0);
}

TEST_F(DryRunTest, CopiesMoveNothingAndCostTheirTime) {
  use_dry_machine();
  at::Tensor x = some({1 << 20});
  const at::Tensor pinned = at::empty({1 << 20}, at::TensorOptions().pinned_memory(true));
  at::Tensor(pinned).copy_(x, /*non_blocking=*/true);
  x.copy_(pinned, /*non_blocking=*/true);
  EXPECT_EQ(sim().counters(0).bytes_in, 4 << 20);
  EXPECT_EQ(sim().counters(0).bytes_out, 4 << 20);
  EXPECT_GT(sim().stream_time(0, 0), 800'000);
}

// Results of many operators have the shapes, dtypes and strides that a real run gives.
TEST_F(DryRunTest, ShapesAreThoseOfTheCpu) {
  use_dry_machine();
  const auto compare = [](const std::string& name,
                          const Tensors& inputs,
                          const std::function<Tensors(const Tensors&)>& work) {
    SCOPED_TRACE(name);
    Tensors on_device;
    for (const at::Tensor& input : inputs) {
      on_device.push_back(
          at::empty_strided(input.sizes(), input.strides(), input.options().device(device())));
    }
    const Tensors expected = work(inputs);
    const Tensors got = work(on_device);
    ASSERT_EQ(expected.size(), got.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(expected[i].sizes(), got[i].sizes());
      EXPECT_EQ(expected[i].scalar_type(), got[i].scalar_type());
      EXPECT_EQ(expected[i].strides(), got[i].strides());
      EXPECT_TRUE(got[i].device().is_privateuseone());
    }
  };
  const Tensors two = {on_cpu({4, 6}, 1), on_cpu({4, 6}, 2), ints_on_cpu({4, 3}, 4, 3)};
  compare("element-wise", two, [](const Tensors& in) -> Tensors {
    return {in[0] + in[1],
            in[0].t() * 2,
            in[0] < in[1],
            at::where(in[0] > 0, in[0], in[1]),
            in[0].to(at::kBFloat16),
            in[0].clone(),
            at::gelu(in[0]),
            in[0].masked_fill(in[1] > 0, 1),
            at::where(in[0] > 0, in[0], at::Scalar(0)),
            in[0].sigmoid().bernoulli(),
            at::bernoulli(in[0], 0.5),
            at::dropout(in[0], 0.5, true),
            in[0].lerp(in[1], 0.5),
            at::rsqrt(in[0])};
  });
  compare("reductions", two, [](const Tensors& in) -> Tensors {
    return {in[0].sum(),
            in[0].sum(1, true),
            in[0].mean(0),
            in[0].argmax(1),
            std::get<0>(in[0].max(1)),
            in[0].norm(),
            in[0].cumsum(1),
            in[0].logsumexp(1),
            at::softmax(in[0], 1),
            in[0].amax(0),
            in[0].any(),
            in[0].std(1)};
  });
  compare("picking", two, [](const Tensors& in) -> Tensors {
    const auto [values, indices] = in[0].topk(2, 1);
    const auto [sorted, order] = in[0].sort(1);
    return {values,
            indices,
            sorted,
            order,
            in[0].gather(1, in[2]),
            in[0].index_select(0, in[2][0]),
            in[0].scatter_add(1, in[2], in[1]),
            at::cat({in[0], in[1]}),
            at::stack({in[0], in[1]}, 2),
            at::embedding(in[0], in[2]),
            in[0].index({in[2][0]}),
            in[0].index_add(0, in[2][0], in[1].slice(0, 0, 3)),
            at::one_hot(in[2], 5),
            in[0].index_put({in[2][0]}, in[1].slice(0, 0, 3))};
  });
  compare("products",
          {on_cpu({2, 4, 6}, 1), on_cpu({2, 6, 3}, 2), on_cpu({3}, 3)},
          [](const Tensors& in) -> Tensors {
            return {at::bmm(in[0], in[1]),
                    at::mm(in[0][0], in[1][0]),
                    at::addmm(in[2], in[0][0], in[1][0]),
                    at::matmul(in[0], in[1][0]),
                    at::linear(in[0], in[1][0].t(), in[2]),
                    at::layer_norm(in[0], {6}),
                    at::rms_norm(in[0], {6})};
          });
  compare("convolution",
          {on_cpu({2, 4, 9, 9}, 1), on_cpu({6, 4, 3, 3}, 2), on_cpu({4, 6, 3, 3}, 3)},
          [](const Tensors& in) -> Tensors {
            return {at::conv2d(in[0], in[1], {}, {2, 2}, {1, 1}),
                    at::conv_transpose2d(in[0], in[2], {}, {2, 2}, {1, 1}, {1, 1})};
          });
}

}  // namespace
}  // namespace swapline::testing
