// Joining, picking, scattering, sorting: as on the CPU, index lists with gaps included.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/sim_test.h"

#include <optional>

namespace swapline::testing {
namespace {

class IndexingTest : public SimTest {};

using Indices = c10::List<std::optional<at::Tensor>>;

TEST_F(IndexingTest, CatAndStack) {
  expect_same_as_cpu("cat",
                     {on_cpu({3, 4}, 1), on_cpu({3, 4}, 2), on_cpu({5, 4}, 3)},
                     [](const Tensors& in) -> Tensors {
                       return {at::cat({in[0], in[2]}, 0),
                               at::stack({in[0], in[1]}, 1),
                               at::cat({in[0].t(), in[1].t()}, 0),
                               at::hstack({in[0], in[1]})};
                     });
  expect_same_as_cpu("cat backward",
                     {on_cpu({3, 4}, 1), on_cpu({5, 4}, 2)},
                     with_backward([](const Tensors& in) { return at::cat({in[0], in[1]}) * 2; }));
}

TEST_F(IndexingTest, IndexWithTensorsMasksAndGaps) {
  expect_same_as_cpu("index",
                     {on_cpu({6, 5, 4}, 1), ints_on_cpu({7}, 6, 2), ints_on_cpu({7}, 4, 3)},
                     [](const Tensors& in) -> Tensors {
                       const at::Tensor& x = in[0];
                       return {at::index(x, Indices({in[1]})),
                               at::index(x, Indices({std::nullopt, std::nullopt, in[2]})),
                               at::index(x, Indices({in[1], std::nullopt, in[2]})),
                               at::index(x, Indices({x.sum({1, 2}) > 0})),
                               x.index_select(1, in[2]),
                               x.masked_select(x > 0),
                               at::take(x, in[1])};
                     });
}

TEST_F(IndexingTest, IndexPut) {
  const Tensors inputs = {on_cpu({6, 5}, 1),
                          at::arange(0, 6, 2),
                          on_cpu({3, 5}, 2),
                          ints_on_cpu({9}, 6, 3),
                          on_cpu({9, 5}, 4)};
  expect_same_as_cpu("index_put_", inputs, [](const Tensors& in) -> Tensors {
    at::Tensor x = in[0];
    x.index_put_(Indices({in[1]}), in[2]);
    at::Tensor summed = in[0].clone();
    summed.index_put_(Indices({in[3]}), in[4], /*accumulate=*/true);
    at::Tensor masked = in[0].clone();
    masked.index_put_(Indices({in[0] > 0}), at::scalar_tensor(9.0));
    return {summed, masked, in[0].index_fill(0, in[1], 3), in[0].index_add(0, in[3], in[4])};
  });
}

TEST_F(IndexingTest, GatherAndScatter) {
  const Tensors inputs = {on_cpu({4, 6}, 1), ints_on_cpu({4, 3}, 6, 2), on_cpu({4, 3}, 3)};
  expect_same_as_cpu("scatter", inputs, [](const Tensors& in) -> Tensors {
    return {in[0].gather(1, in[1]),
            in[0].scatter_add(1, in[1], in[2]),
            in[0].scatter(1, in[1].slice(1, 0, 1), in[2]),
            in[0].scatter(1, in[1], 5),
            in[0].scatter_reduce(1, in[1], in[2], "amax")};
  });
  expect_same_as_cpu("gather backward", inputs, with_backward([](const Tensors& in) {
                       return in[0].gather(1, in[1]) * in[2];
                     }));
}

TEST_F(IndexingTest, SortTopkAndFriends) {
  expect_same_as_cpu(
      "sort", {on_cpu({5, 33}, 1), ints_on_cpu({40}, 10, 2)}, [](const Tensors& in) -> Tensors {
        const auto [sorted, order] = in[0].sort(1, true);
        const auto [top, where] = in[0].topk(4, 1);
        const auto [unique, inverse, counts] = at::_unique2(in[1], true, true, true);
        return {sorted,
                order,
                top,
                where,
                in[0].argsort(int64_t{0}),
                unique,
                inverse,
                counts,
                in[1].bincount(),
                at::searchsorted(sorted.flip(1).contiguous(), in[0]),
                at::one_hot(in[1], 10),
                at::histc(in[0], 5, -2, 2)};
      });
}

TEST_F(IndexingTest, ResultsWhoseSizeDependsOnTheData) {
  expect_same_as_cpu("nonzero", {on_cpu({5, 6}, 1)}, [](const Tensors& in) -> Tensors {
    return {at::nonzero(in[0] > 0),
            at::argwhere(in[0] > 1),
            at::where(in[0] > 0)[1],
            in[0].masked_select(in[0] > 0.5),
            at::nonzero(in[0] > 100)};
  });
}

TEST_F(IndexingTest, WhereAndMaskedFill) {
  expect_same_as_cpu(
      "where", {on_cpu({5, 6}, 1), on_cpu({6}, 2)}, [](const Tensors& in) -> Tensors {
        return {at::where(in[0] > 0, in[0], in[1]),
                in[0].masked_fill(in[0] > 0, -1),
                at::where(in[0] > 0, in[0], at::Scalar(0)),
                at::masked_fill(in[0], in[1] > 0, 2)};
      });
}

TEST_F(IndexingTest, MixtureOfExpertsRouting) {
  const Tensors inputs = {on_cpu({10, 8}, 1), on_cpu({8, 4}, 2)};
  expect_same_as_cpu(
      "routing", inputs, with_backward([](const Tensors& in) {
        const auto [scores, experts] = at::softmax(at::mm(in[0], in[1]), -1).topk(2, -1);
        at::Tensor out = at::zeros_like(in[0]);
        for (int64_t expert = 0; expert < 4; ++expert) {
          const at::Tensor mine = experts == expert;
          const at::Tensor rows = at::nonzero(mine.any(1)).flatten();
          const at::Tensor weight = (scores * mine).sum(1).index_select(0, rows).unsqueeze(1);
          out = out.index_add(0, rows, in[0].index_select(0, rows) * weight * (1.0 + expert));
        }
        return out;
      }));
}

}  // namespace
}  // namespace swapline::testing
