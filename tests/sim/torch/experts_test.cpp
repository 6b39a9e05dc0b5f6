// What layers with experts and latent attention need: grouped products, ends of sorted groups,
// attention whose values are narrower than its keys. Numbers as on the CPU, shapes and costs dry.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/errors.h"
#include "tests/support/sim_test.h"

namespace swapline::testing {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

class ExpertsTest : public SimTest {
 protected:
  void use_dry_machine() {
    sim::SimulatorOptions options = machine({.capacity_bytes = size_t{64} << 30});
    options.dry_run = true;
    sim::configure(options);
  }
  static at::Tensor some(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device()));
  }
  // Time that `work` keeps the stream busy.
  static sim::Nanos time_of(const std::function<void()>& work) {
    keep_busy(50);  // the stream is behind the host: no gaps
    const sim::Nanos before = sim::simulator().stream_time(0, 0);
    work();
    return sim::simulator().stream_time(0, 0) - before;
  }
};

at::Tensor ends_of(const std::vector<int>& ends) {
  return at::tensor(ends, at::kInt);
}

// Rows of 8 experts, of which two get none.
TEST_F(ExpertsTest, GroupedProductAndItsGradientsAreTheCpus) {
  for (const at::ScalarType dtype : kTypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensors inputs = {on_cpu({40, 16}, 1, dtype),
                            on_cpu({8, 24, 16}, 2, dtype),
                            ends_of({3, 3, 4, 11, 11, 30, 39, 40})};
    expect_same_as_cpu("grouped", inputs, with_backward([](const Tensors& in) {
                         return at::_grouped_mm(in[0], in[1].transpose(1, 2), in[2]);
                       }));
  }
}

TEST_F(ExpertsTest, GroupedProductOfNoRows) {
  expect_same_as_cpu("none",
                     {on_cpu({0, 16}, 1), on_cpu({2, 24, 16}, 2), ends_of({0, 0})},
                     with_backward([](const Tensors& in) {
                       return at::_grouped_mm(in[0], in[1].transpose(1, 2), in[2]);
                     }));
}

TEST_F(ExpertsTest, GroupedProductIsOneLaunchAndTheHostDoesNotWait) {
  const at::Tensor rows = random_tensor({40, 16}, 1);
  const at::Tensor matrices = random_tensor({4, 16, 24}, 2);
  const at::Tensor ends = ends_of({10, 10, 30, 40}).to(device());
  const auto before = sim().counters(0);
  at::_grouped_mm(rows, matrices, ends);
  EXPECT_EQ(sim().counters(0).num_ops, before.num_ops + 1);
  EXPECT_EQ(sim().counters(0).num_copies_out, before.num_copies_out);
}

TEST_F(ExpertsTest, SortedGroupsEnds) {
  expect_same_as_cpu("ends", {ints_on_cpu({50}, 8, 1)}, [](const Tensors& in) -> Tensors {
    const auto [sorted, order] = in[0].sort(/*stable=*/true, -1, /*descending=*/false);
    const at::Tensor experts = at::arange(8, sorted.options());
    return {order,
            at::searchsorted(sorted, experts, /*out_int32=*/true, /*right=*/true),
            at::searchsorted(sorted, experts, /*out_int32=*/false, /*right=*/false)};
  });
}

at::Tensor attend(const Tensors& in) {
  return at::scaled_dot_product_attention(in[0].transpose(1, 2),
                                          in[1].transpose(1, 2),
                                          in[2].transpose(1, 2),
                                          {},
                                          0.0,
                                          /*is_causal=*/true)
      .transpose(1, 2)
      .contiguous();
}

TEST_F(ExpertsTest, AttentionWithNarrowerValuesIsTheCpus) {
  for (const at::ScalarType dtype : kTypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensors inputs = {on_cpu({2, 33, 3, 24}, 1, dtype),
                            on_cpu({2, 33, 3, 24}, 2, dtype),
                            on_cpu({2, 33, 3, 16}, 3, dtype)};
    expect_same_as_cpu("causal", inputs, with_backward(attend));
  }
}

TEST_F(ExpertsTest, AttentionWithNarrowerValuesAndAMaskIsTheCpus) {
  const Tensors inputs = {
      on_cpu({2, 3, 12, 24}, 1), on_cpu({2, 3, 20, 24}, 2), on_cpu({2, 3, 20, 16}, 3)};
  expect_same_as_cpu("mask", inputs, with_backward([](const Tensors& in) {
                       const at::Tensor mask = at::ones({12, 20}, in[0].options()).tril() * 0.5;
                       return at::scaled_dot_product_attention(
                                  in[0], in[1], in[2], mask, 0.0, false, /*scale=*/0.3)
                           .contiguous();
                     }));
}

TEST_F(ExpertsTest, AttentionWithNarrowerValuesRefusesFewerKeyHeads) {
  const at::Tensor q = random_tensor({1, 4, 8, 24}, 1);
  const at::Tensor k = random_tensor({1, 2, 8, 24}, 2);
  const at::Tensor v = random_tensor({1, 2, 8, 16}, 3);
  const std::string text = message_of(
      [&] { at::scaled_dot_product_attention(q, k, v, {}, 0.0, true, {}, /*enable_gqa=*/true); });
  EXPECT_NE(text.find("repeat the keys"), std::string::npos) << text;
}

// The same program costs the same, and gives the same shapes and strides, with and without numbers.
TEST_F(ExpertsTest, DryRunCostsWhatTheRealRunCosts) {
  struct Figures {
    std::vector<std::vector<int64_t>> shapes;
    sim::Nanos stream = 0;
    int64_t ops = 0;
    size_t peak = 0;
    bool operator==(const Figures&) const = default;
  };
  const auto run = [&] {
    Figures figures;
    const auto keep = [&](const at::Tensor& x) {
      figures.shapes.push_back(x.sizes().vec());
      figures.shapes.push_back(x.strides().vec());
    };
    const at::Tensor rows = at::zeros({40, 16}, device()).requires_grad_();
    const at::Tensor matrices = at::zeros({4, 20, 16}, device()).requires_grad_();
    const at::Tensor sorted = at::arange(40, at::TensorOptions().device(device())).div(10, "floor");
    const at::Tensor ends = at::searchsorted(sorted, at::arange(4, sorted.options()), true, true);
    const at::Tensor out = at::_grouped_mm(rows, matrices.transpose(1, 2), ends);
    out.backward(at::ones_like(out));
    const at::Tensor q = at::zeros({2, 9, 3, 24}, device()).requires_grad_();
    const at::Tensor v = at::zeros({2, 9, 3, 16}, device()).requires_grad_();
    const at::Tensor mixed = attend({q, q, v});
    mixed.backward(at::ones_like(mixed));
    for (const at::Tensor& x :
         {ends, out, rows.grad(), matrices.grad(), mixed, q.grad(), v.grad()}) {
      keep(x);
    }
    figures.stream = sim().stream_time(0, 0);
    figures.ops = sim().counters(0).num_ops;
    figures.peak = sim().memory_stats(0).peak_allocated_bytes;
    return figures;
  };
  use_machine();
  const Figures real = run();
  use_dry_machine();
  const Figures dry = run();
  EXPECT_EQ(dry.shapes, real.shapes);
  EXPECT_EQ(dry.stream, real.stream);
  EXPECT_EQ(dry.ops, real.ops);
  EXPECT_EQ(dry.peak, real.peak);
}

TEST_F(ExpertsTest, GroupedProductCostsItsRows) {
  use_dry_machine();
  const at::Tensor x = some({8192, 1024}, at::kBFloat16);
  const at::Tensor one = some({1024, 1024}, at::kBFloat16);
  const at::Tensor eight = some({8, 1024, 1024}, at::kBFloat16);
  const at::Tensor ends = some({8}, at::kInt);
  const sim::Nanos plain = time_of([&] { at::mm(x, one); });
  EXPECT_EQ(time_of([&] { at::_grouped_mm(x, eight, ends); }), plain);
  EXPECT_EQ(time_of([&] { at::_grouped_mm(x.t(), x, ends); }), time_of([&] { at::mm(x.t(), x); }));
}

TEST_F(ExpertsTest, AttentionCostsTheWidthsOfKeysAndValues) {
  use_dry_machine();
  const auto forward = [&](int64_t keys, int64_t values) {
    const at::Tensor q = some({1, 16, 4096, keys}, at::kBFloat16);
    const at::Tensor v = some({1, 16, 4096, values}, at::kBFloat16);
    return time_of([&] { at::scaled_dot_product_attention(q, q, v, {}, 0.0, true); });
  };
  EXPECT_EQ(forward(192, 128), forward(160, 160));
  EXPECT_GT(forward(192, 128), forward(128, 128));
}

TEST_F(ExpertsTest, GroupedProductOfBatchesCannotBeDryRun) {
  use_dry_machine();
  const std::string text = message_of([&] { at::_grouped_mm(some({2, 8, 8}), some({2, 8, 8})); });
  EXPECT_NE(text.find("_grouped_mm in a dry run"), std::string::npos) << text;
}

}  // namespace
}  // namespace swapline::testing
