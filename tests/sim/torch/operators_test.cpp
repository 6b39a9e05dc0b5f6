// Factories, element-wise operators, outputs given by the caller, reductions and views: as on the
// CPU.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/sim_test.h"

#include <utility>

namespace swapline::testing {
namespace {

class OperatorsTest : public SimTest {};

using Unary = std::function<at::Tensor(const at::Tensor&)>;
using Binary = std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>;
using Dtypes = std::vector<at::ScalarType>;

const Dtypes kFloats = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

void expect_same_unary(const std::string& name, const at::Tensor& x, const Unary& op) {
  expect_same_as_cpu(name, {x}, [&](const Tensors& in) -> Tensors { return {op(in[0])}; });
}

TEST_F(OperatorsTest, FactoriesMakeTheSameTensors) {
  expect_same_as_cpu("factories", {at::zeros({1})}, [](const Tensors& in) -> Tensors {
    const auto options = in[0].options();
    const auto ints = options.dtype(at::kLong);
    return {at::arange(17, options),
            at::arange(3, 20, 4, ints),
            at::zeros({2, 3}, options),
            at::ones({0, 3}, options),
            at::full({3}, 1.5, options),
            at::full({2, 2}, 7, ints),
            at::eye(4, options),
            at::linspace(-3, 5, 23, options),
            at::logspace(0, 2, 5, 10.0, options),
            at::zeros_like(in[0]),
            at::full_like(in[0], 3),
            at::scalar_tensor(2.5, options),
            at::tril(at::ones({3, 3}, options)),
            at::triu(at::ones({3, 3}, options), 1),
            at::tril_indices(3, 3, 0, ints),
            in[0].new_zeros({2}),
            in[0].new_full({2}, 4),
            at::empty({0}, options)};
  });
}

TEST_F(OperatorsTest, UnaryOperatorsInEveryFloatingType) {
  const std::vector<std::pair<const char*, Unary>> ops = {
      {"abs", [](const auto& x) { return x.abs(); }},
      {"neg", [](const auto& x) { return -x; }},
      {"exp", [](const auto& x) { return x.exp(); }},
      {"log", [](const auto& x) { return x.abs().add(1).log(); }},
      {"sqrt", [](const auto& x) { return x.abs().sqrt(); }},
      {"rsqrt", [](const auto& x) { return x.abs().add(1).rsqrt(); }},
      {"sin cos", [](const auto& x) { return x.sin().mul(x.cos()); }},
      {"tanh", [](const auto& x) { return x.tanh(); }},
      {"sigmoid", [](const auto& x) { return x.sigmoid(); }},
      {"relu", [](const auto& x) { return x.relu(); }},
      {"gelu", [](const auto& x) { return at::gelu(x); }},
      {"gelu tanh", [](const auto& x) { return at::gelu(x, "tanh"); }},
      {"silu", [](const auto& x) { return at::silu(x); }},
      {"pow", [](const auto& x) { return x.pow(3); }},
      {"square", [](const auto& x) { return x.square(); }},
      {"clamp", [](const auto& x) { return x.clamp(-0.5, 0.5); }},
      {"floor", [](const auto& x) { return x.floor(); }},
      {"sign", [](const auto& x) { return x.sign(); }},
      {"isnan", [](const auto& x) { return x.isnan(); }},
      {"isfinite", [](const auto& x) { return at::isfinite(x); }},
      {"reciprocal", [](const auto& x) { return x.add(9).reciprocal(); }},
      {"erf", [](const auto& x) { return x.erf(); }},
      {"clone", [](const auto& x) { return x.clone(); }},
      {"to double", [](const auto& x) { return x.to(at::kDouble); }},
      {"to bool", [](const auto& x) { return x.to(at::kBool); }},
  };
  for (const at::ScalarType dtype : kFloats) {
    SCOPED_TRACE(c10::toString(dtype));
    for (const auto& [name, op] : ops) {
      expect_same_unary(name, on_cpu({7, 13}, 1, dtype), op);
      expect_same_unary(name, on_cpu({13, 7}, 1, dtype).t(), op);
    }
  }
}

TEST_F(OperatorsTest, BinaryOperatorsBroadcastAndPromote) {
  const std::vector<std::pair<const char*, Binary>> ops = {
      {"add", [](const auto& a, const auto& b) { return a + b; }},
      {"add alpha", [](const auto& a, const auto& b) { return at::add(a, b, 3); }},
      {"sub", [](const auto& a, const auto& b) { return a - b; }},
      {"mul", [](const auto& a, const auto& b) { return a * b; }},
      {"div", [](const auto& a, const auto& b) { return a / (b * b + 1); }},
      {"maximum", [](const auto& a, const auto& b) { return at::maximum(a, b); }},
      {"lt", [](const auto& a, const auto& b) { return a < b; }},
      {"eq", [](const auto& a, const auto& b) { return a == b; }},
      {"where", [](const auto& a, const auto& b) { return at::where(a > b, a, b); }},
      {"lerp",
       [](const auto& a, const auto& b) { return a.expand_as(a + b).lerp(b.to(a.dtype()), 0.3); }},
      {"scalar", [](const auto& a, const auto& b) { return 2 - a * 3 + b / 4; }},
      {"cpu scalar", [](const auto& a, const auto& b) { return a * at::scalar_tensor(0.1) + b; }},
      {"fmod", [](const auto& a, const auto& b) { return at::fmod(a, b * b + 1); }},
      {"atan2", [](const auto& a, const auto& b) { return at::atan2(a, b); }},
  };
  const std::vector<std::pair<at::Tensor, at::Tensor>> operands = {
      {on_cpu({5, 9}, 1), on_cpu({5, 9}, 2)},
      {on_cpu({5, 9}, 1), on_cpu({9}, 2)},
      {on_cpu({5, 1}, 1), on_cpu({1, 9}, 2)},
      {on_cpu({4, 6}, 1, at::kBFloat16), on_cpu({4, 6}, 2, at::kBFloat16)},
      {on_cpu({6}, 1, at::kFloat), on_cpu({6}, 2, at::kDouble)},
      {on_cpu({}, 1), on_cpu({3}, 2)},
  };
  for (const auto& [a, b] : operands) {
    for (const auto& [name, op] : ops) {
      const Binary& run = op;
      if (std::string(name) == "lerp" && a.scalar_type() != b.scalar_type()) {
        continue;
      }
      expect_same_as_cpu(
          name, {a, b}, [&](const Tensors& in) -> Tensors { return {run(in[0], in[1])}; });
    }
  }
}

TEST_F(OperatorsTest, IntegerAndBooleanOperators) {
  const at::Tensor a = ints_on_cpu({4, 5}, 50, 1);
  const at::Tensor b = ints_on_cpu({4, 5}, 50, 2);
  expect_same_as_cpu("integers", {a, b}, [](const Tensors& in) -> Tensors {
    const at::Tensor& x = in[0];
    const at::Tensor& y = in[1];
    const at::Tensor is_small = x < 20;
    return {x + y,
            x / (y + 1),
            at::floor_divide(x, y + 1),
            x % (y + 1),
            x & y,
            x.bitwise_xor(y),
            x.bitwise_left_shift(2),
            is_small & (y > 5),
            ~is_small,
            is_small.logical_or(y < 3),
            is_small.any(),
            is_small.all(1),
            x.sum(),
            is_small.sum(),
            x.cumsum(0),
            x.to(at::kByte),
            x.to(at::kInt).max()};
  });
}

TEST_F(OperatorsTest, ComplexOperatorsAndLazyConjugation) {
  const at::Tensor x = at::complex(on_cpu({3, 4}, 1), on_cpu({3, 4}, 2));
  expect_same_as_cpu("complex", {x}, [](const Tensors& in) -> Tensors {
    const at::Tensor& z = in[0];
    const at::Tensor lazily = z.conj();
    return {z * z,
            z.abs(),
            lazily.resolve_conj(),
            lazily + 1,
            lazily.clone(),
            at::imag(lazily).clone(),
            at::imag(lazily) + 1,
            at::mm(z, lazily.t()),
            at::view_as_real(z),
            at::view_as_complex(at::view_as_real(z)) * 2,
            at::real(z),
            at::polar(z.abs(), z.angle())};
  });
  expect_same_as_cpu(
      "rope", {on_cpu({2, 5, 6}, 3), on_cpu({5, 3}, 4)}, with_backward([](const Tensors& in) {
        const at::Tensor turned = at::view_as_complex(in[0].reshape({2, 5, 3, 2})) *
                                  at::polar(at::ones_like(in[1]), in[1]);
        return at::view_as_real(turned).flatten(2);
      }));
}

TEST_F(OperatorsTest, InPlaceOperatorsChangeTheirArgument) {
  const std::vector<std::pair<const char*, std::function<void(at::Tensor, const at::Tensor&)>>>
      ops = {
          {"add_", [](at::Tensor x, const auto& y) { x.add_(y, 2); }},
          {"mul_", [](at::Tensor x, const auto& y) { x.mul_(y); }},
          {"div_", [](at::Tensor x, const auto&) { x.div_(3); }},
          {"zero_", [](at::Tensor x, const auto&) { x.zero_(); }},
          {"fill_", [](at::Tensor x, const auto&) { x.fill_(4); }},
          {"copy_", [](at::Tensor x, const auto& y) { x.copy_(y); }},
          {"addcmul_", [](at::Tensor x, const auto& y) { x.addcmul_(y, y, 0.5); }},
          {"addcdiv_", [](at::Tensor x, const auto& y) { x.addcdiv_(y, y * y + 1, 0.5); }},
          {"lerp_", [](at::Tensor x, const auto& y) { x.lerp_(y, 0.1); }},
          {"clamp_", [](at::Tensor x, const auto&) { x.clamp_(0, 1); }},
          {"sqrt_", [](at::Tensor x, const auto&) { x.abs_().sqrt_(); }},
          {"masked_fill_", [](at::Tensor x, const auto& y) { x.masked_fill_(y > 0, -1); }},
          {"slice", [](at::Tensor x, const auto& y) { x.slice(0, 1, 3).add_(y.slice(0, 1, 3)); }},
          {"transpose", [](at::Tensor x, const auto& y) { x.t().sub_(y.t()); }},
          {"select", [](at::Tensor x, const auto& y) { x.select(1, 2).copy_(y.select(1, 0)); }},
          {"overlapping fill", [](at::Tensor x, const auto&) { x[0].fill_(1); }},
  };
  for (const auto& [name, op] : ops) {
    const auto& run = op;
    expect_same_as_cpu(
        name, {on_cpu({4, 6}, 1), on_cpu({4, 6}, 2)}, [&](const Tensors& in) -> Tensors {
          run(in[0], in[1]);
          return {};
        });
  }
}

TEST_F(OperatorsTest, OutputsGivenByTheCallerAreResized) {
  expect_same_as_cpu(
      "out=", {on_cpu({4, 6}, 1), on_cpu({6, 5}, 2)}, [](const Tensors& in) -> Tensors {
        const auto options = in[0].options();
        at::Tensor nothing = at::empty({0}, options);  // its storage has no bytes
        at::mm_out(nothing, in[0], in[1]);
        at::Tensor longer = at::empty({0}, options);
        at::arange_out(longer, 0, 100, 1);
        at::Tensor right = at::zeros({4, 6}, options);
        const void* before = right.data_ptr();
        at::add_out(right, in[0], in[0]);
        EXPECT_EQ(right.data_ptr(), before) << "an output of the right size stays where it is";
        at::Tensor larger = at::zeros({100}, options);
        larger.resize_({0});
        at::sigmoid_out(larger, in[0]);
        at::Tensor joined = at::empty({0}, options);
        at::cat_out(joined, {in[0], in[0]}, 0);
        at::Tensor values = at::empty({0}, options);
        at::Tensor indices = at::empty({0}, options.dtype(at::kLong));
        at::topk_out(values, indices, in[0], 3);
        at::Tensor view = at::zeros({4, 12}, options).slice(1, 0, 12, 2);
        at::mul_out(view, in[0], in[0]);
        return {nothing, longer, right, larger, joined, values, indices, view};
      });
}

TEST_F(OperatorsTest, Reductions) {
  for (const at::ScalarType dtype : kFloats) {
    SCOPED_TRACE(c10::toString(dtype));
    expect_same_as_cpu(
        "reductions", {on_cpu({6, 37, 5}, 1, dtype)}, [](const Tensors& in) -> Tensors {
          const at::Tensor& x = in[0];
          const auto [most, at_most] = x.max(1);
          return {x.sum(),
                  x.sum(1),
                  x.sum({0, 2}, true),
                  x.mean(),
                  x.mean(-1),
                  x.amax(1),
                  x.amin({0, 1}),
                  x.argmax(),
                  x.argmin(1),
                  most,
                  at_most,
                  x.norm(),
                  x.norm(2, 1),
                  at::linalg_vector_norm(x, 2),
                  x.cumsum(1),
                  x.prod(2),
                  x.std(1),
                  x.var(),
                  x.logsumexp(1),
                  x.count_nonzero(),
                  x.median(),
                  x.sum(at::IntArrayRef{1}, false, at::kDouble)};
        });
  }
}

TEST_F(OperatorsTest, ViewsShareTheMemoryOfTheirBase) {
  expect_same_as_cpu("views", {on_cpu({4, 4, 3}, 1)}, [](const Tensors& in) -> Tensors {
    const at::Tensor& x = in[0];
    const Tensors all = {x.view({24, 2}),
                         x.transpose(0, 2),
                         x.slice(1, 1, 3),
                         x.select(0, 1),
                         x.as_strided({3, 3}, {1, 2}, 4),
                         x.unfold(1, 2, 1),
                         x.expand({2, 4, 4, 3}),
                         x.permute({2, 0, 1}),
                         x.unsqueeze(1),
                         x.narrow(2, 1, 2),
                         x.diagonal(0, 0, 1),
                         x.split(2, 1)[1],
                         x.chunk(2, 0)[1],
                         x.unbind(2)[2],
                         x.movedim(0, 2),
                         x.view(at::kInt),
                         x.detach(),
                         x.reshape({12, 4})};
    for (const at::Tensor& view : all) {
      EXPECT_TRUE(view.is_alias_of(x));
    }
    x.add_(1);  // seen through every view
    return all;
  });
}

TEST_F(OperatorsTest, ViewsCostNothing) {
  const at::Tensor x = on_cpu({4, 6}, 1).to(device());
  const auto before = sim().counters(0);
  const sim::Nanos host = sim().host_time(0);
  x.t().slice(0, 1, 3).unsqueeze(0).expand({5, 2, 4}).view({5, 2, 4});
  EXPECT_EQ(sim().counters(0).num_ops, before.num_ops);
  EXPECT_EQ(sim().host_time(0), host);
}

TEST_F(OperatorsTest, EmptyTensors) {
  expect_same_as_cpu(
      "empty", {at::zeros({0, 4}), at::zeros({4, 3})}, [](const Tensors& in) -> Tensors {
        return {in[0] + 1,
                in[0].sum(),
                at::mm(in[0], in[1]),
                at::cat({in[0], in[0]}),
                in[0].sum(1),
                in[0].clone(),
                in[0].t().contiguous()};
      });
}

TEST_F(OperatorsTest, TensorsOfTwoDevicesInOneOperatorAreRefused) {
  const at::Tensor here = at::ones({2}, device(0));
  const at::Tensor there = at::ones({2}, device(1));
  EXPECT_THROW(here + there, c10::Error);
}

TEST_F(OperatorsTest, ItemReadsTheValue) {
  const at::Tensor x = at::full({}, 2.5, device());
  EXPECT_EQ(x.item<double>(), 2.5);
  EXPECT_EQ(at::full({1}, 7, at::TensorOptions().device(device()).dtype(at::kLong)).item<int64_t>(),
            7);
  EXPECT_TRUE((x > 2).item<bool>());
  EXPECT_TRUE(at::is_nonzero(x));
}

}  // namespace
}  // namespace swapline::testing
