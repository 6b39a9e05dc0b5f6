// What models are made of, forward and backward: products, softmax, losses, norms, embedding,
// attention, convolution, and a whole transformer block. As on the CPU, bit by bit.
#include "tests/sim/torch/same_as_cpu.h"
#include "tests/support/sim_test.h"

namespace swapline::testing {
namespace {

class LayersTest : public SimTest {};

const std::vector<at::ScalarType> kTrainingTypes = {at::kFloat, at::kBFloat16};

TEST_F(LayersTest, MatrixProducts) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(dtype));
    const auto x = [&](at::IntArrayRef sizes, uint64_t seed) { return on_cpu(sizes, seed, dtype); };
    expect_same_as_cpu("mm", {x({9, 17}, 1), x({17, 5}, 2)}, with_backward([](const Tensors& in) {
                         return at::mm(in[0], in[1]);
                       }));
    expect_same_as_cpu(
        "mm transposed", {x({17, 9}, 1), x({5, 17}, 2)}, with_backward([](const Tensors& in) {
          return at::mm(in[0].t(), in[1].t());
        }));
    expect_same_as_cpu(
        "addmm", {x({5}, 1), x({9, 17}, 2), x({17, 5}, 3)}, with_backward([](const Tensors& in) {
          return at::addmm(in[0], in[1], in[2], 0.5, 2);
        }));
    expect_same_as_cpu("bmm",
                       {x({3, 4, 7}, 1), x({3, 7, 2}, 2)},
                       with_backward([](const Tensors& in) { return at::bmm(in[0], in[1]); }));
    expect_same_as_cpu(
        "baddbmm",
        {x({3, 4, 2}, 1), x({3, 4, 7}, 2), x({3, 7, 2}, 3)},
        with_backward([](const Tensors& in) { return at::baddbmm(in[0], in[1], in[2]); }));
    expect_same_as_cpu(
        "linear", {x({2, 3, 8}, 1), x({6, 8}, 2), x({6}, 3)}, with_backward([](const Tensors& in) {
          return at::linear(in[0], in[1], in[2]);
        }));
    expect_same_as_cpu("matmul",
                       {x({2, 3, 4, 5}, 1), x({5, 6}, 2)},
                       with_backward([](const Tensors& in) { return at::matmul(in[0], in[1]); }));
  }
  expect_same_as_cpu("vectors",
                     {on_cpu({6, 5}, 1), on_cpu({5}, 2), on_cpu({5}, 3)},
                     [](const Tensors& in) -> Tensors {
                       return {at::mv(in[0], in[1]),
                               at::dot(in[1], in[2]),
                               at::outer(in[1], in[2]),
                               at::einsum("ij,j->i", {in[0], in[1]})};
                     });
}

TEST_F(LayersTest, SoftmaxAndLosses) {
  for (const at::ScalarType dtype : kTrainingTypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor x = on_cpu({6, 11}, 1, dtype);
    const at::Tensor target = ints_on_cpu({6}, 11, 2);
    expect_same_as_cpu(
        "softmax", {x}, with_backward([](const Tensors& in) { return at::softmax(in[0], -1); }));
    expect_same_as_cpu("softmax to fp32", {x}, with_backward([](const Tensors& in) {
                         return at::softmax(in[0], -1, at::kFloat);
                       }));
    expect_same_as_cpu("log_softmax", {x}, with_backward([](const Tensors& in) {
                         return at::log_softmax(in[0], 0);
                       }));
    expect_same_as_cpu("cross_entropy", {x, target}, with_backward([](const Tensors& in) {
                         return at::cross_entropy_loss(in[0], in[1]);
                       }));
    expect_same_as_cpu("cross_entropy smoothed", {x, target}, with_backward([](const Tensors& in) {
                         return at::cross_entropy_loss(
                             in[0], in[1], {}, at::Reduction::Sum, 3, 0.1);
                       }));
    expect_same_as_cpu("mse", {x}, with_backward([](const Tensors& in) {
                         return at::mse_loss(in[0], at::zeros_like(in[0]));
                       }));
    expect_same_as_cpu("bce", {x}, with_backward([](const Tensors& in) {
                         return at::binary_cross_entropy_with_logits(in[0], at::ones_like(in[0]));
                       }));
  }
}

TEST_F(LayersTest, LayerNormAndGroupNorm) {
  for (const at::ScalarType dtype : kTrainingTypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensors inputs = {
        on_cpu({5, 7, 16}, 1, dtype), on_cpu({16}, 2, dtype), on_cpu({16}, 3, dtype)};
    expect_same_as_cpu("layer_norm", inputs, with_backward([](const Tensors& in) {
                         return at::layer_norm(in[0], {16}, in[1], in[2]);
                       }));
    expect_same_as_cpu("without affine", {inputs[0]}, with_backward([](const Tensors& in) {
                         return at::layer_norm(in[0], {7, 16});
                       }));
  }
  expect_same_as_cpu(
      "group_norm",
      {on_cpu({2, 6, 5}, 1), on_cpu({6}, 2), on_cpu({6}, 3)},
      with_backward([](const Tensors& in) { return at::group_norm(in[0], 3, in[1], in[2]); }));
}

TEST_F(LayersTest, NormIsOneKernel) {
  const at::Tensor x = on_cpu({4, 16}, 1).to(device());
  const auto count = [](const std::function<void()>& work) {
    const int64_t before = sim().counters(0).num_ops;
    work();
    return sim().counters(0).num_ops - before;
  };
  EXPECT_EQ(count([&] { at::layer_norm(x, {16}); }), 1);
  EXPECT_EQ(count([&] { at::rms_norm(x, {16}); }), 1);
}

TEST_F(LayersTest, RmsNorm) {
  for (const at::ScalarType dtype : kTrainingTypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const Tensors inputs = {on_cpu({5, 7, 16}, 1, dtype), on_cpu({16}, 2, dtype)};
    expect_same_as_cpu("rms_norm", inputs, with_backward([](const Tensors& in) {
                         return at::rms_norm(in[0], {16}, in[1], 1e-5);
                       }));
    expect_same_as_cpu("without weight", {inputs[0]}, with_backward([](const Tensors& in) {
                         return at::rms_norm(in[0], {16});
                       }));
  }
}

TEST_F(LayersTest, Embedding) {
  expect_same_as_cpu("embedding",
                     {on_cpu({12, 5}, 1), ints_on_cpu({3, 7}, 12, 2)},
                     with_backward([](const Tensors& in) { return at::embedding(in[0], in[1]); }));
  expect_same_as_cpu(
      "padding",
      {on_cpu({12, 5}, 1), ints_on_cpu({30}, 12, 2)},
      with_backward([](const Tensors& in) { return at::embedding(in[0], in[1], 3, true); }));
}

TEST_F(LayersTest, Attention) {
  const auto qkv = [](int64_t heads, at::ScalarType dtype) -> Tensors {
    return {on_cpu({2, 4, 9, 8}, 1, dtype),
            on_cpu({2, heads, 9, 8}, 2, dtype),
            on_cpu({2, heads, 9, 8}, 3, dtype)};
  };
  for (const at::ScalarType dtype : kTrainingTypes) {
    SCOPED_TRACE(c10::toString(dtype));
    expect_same_as_cpu("causal", qkv(4, dtype), with_backward([](const Tensors& in) {
                         return at::scaled_dot_product_attention(
                             in[0], in[1], in[2], {}, 0.0, true);
                       }));
    expect_same_as_cpu("full, scaled", qkv(4, dtype), with_backward([](const Tensors& in) {
                         return at::scaled_dot_product_attention(
                             in[0], in[1], in[2], {}, 0.0, false, 0.3);
                       }));
    expect_same_as_cpu(
        "transposed layout", {on_cpu({2, 9, 4, 8}, 1, dtype)}, with_backward([](const Tensors& in) {
          const at::Tensor x = in[0].transpose(1, 2);
          return at::scaled_dot_product_attention(x, x, x, {}, 0.0, true).transpose(1, 2);
        }));
    expect_same_as_cpu("grouped queries", qkv(2, dtype), with_backward([](const Tensors& in) {
                         return at::scaled_dot_product_attention(
                             in[0], in[1], in[2], {}, 0.0, true, {}, /*enable_gqa=*/true);
                       }));
  }
  Tensors masked = qkv(4, at::kFloat);
  masked.push_back(ints_on_cpu({9, 9}, 2, 4).to(at::kBool));
  masked.back().select(1, 0).fill_(true);  // every query sees something
  expect_same_as_cpu("boolean mask", masked, with_backward([](const Tensors& in) {
                       return at::scaled_dot_product_attention(in[0], in[1], in[2], in[3]);
                     }));
  masked.back() = on_cpu({2, 1, 9, 9}, 5);
  expect_same_as_cpu("learned bias", masked, with_backward([](const Tensors& in) {
                       return at::scaled_dot_product_attention(in[0], in[1], in[2], in[3]);
                     }));
}

TEST_F(LayersTest, AttentionIsOneKernelThatHoldsNoScores) {
  const at::Tensor x = on_cpu({1, 1, 512, 16}, 1).to(device());
  sim().reset_peak_memory(0);
  const size_t before = sim().memory_stats(0).allocated_bytes;
  const int64_t ops = sim().counters(0).num_ops;
  const at::Tensor y = at::scaled_dot_product_attention(x, x, x, {}, 0.0, true);
  EXPECT_EQ(sim().counters(0).num_ops, ops + 1);
  EXPECT_LT(sim().memory_stats(0).peak_allocated_bytes - before, 512U * 512U * 4U);
}

TEST_F(LayersTest, Convolution) {
  const Tensors inputs = {on_cpu({2, 4, 9, 9}, 1), on_cpu({6, 4, 3, 3}, 2), on_cpu({6}, 3)};
  expect_same_as_cpu("conv2d", inputs, with_backward([](const Tensors& in) {
                       return at::conv2d(in[0], in[1], in[2], {2, 1}, {1, 1});
                     }));
  expect_same_as_cpu(
      "grouped", {inputs[0], on_cpu({6, 2, 3, 3}, 2)}, with_backward([](const Tensors& in) {
        return at::conv2d(in[0],
                          in[1],
                          {},
                          at::IntArrayRef({1, 1}),
                          at::IntArrayRef({0, 0}),
                          at::IntArrayRef({2, 2}),
                          2);
      }));
  expect_same_as_cpu(
      "conv1d",
      {on_cpu({2, 4, 9}, 1), on_cpu({6, 4, 3}, 2), on_cpu({6}, 3)},
      with_backward([](const Tensors& in) { return at::conv1d(in[0], in[1], in[2]); }));
  expect_same_as_cpu("transposed",
                     {inputs[0], on_cpu({4, 6, 3, 3}, 2), on_cpu({6}, 3)},
                     with_backward([](const Tensors& in) {
                       return at::conv_transpose2d(in[0], in[1], in[2], {2, 2}, {1, 1}, {1, 1});
                     }));
}

TEST_F(LayersTest, PoolingAndBatchNorm) {
  expect_same_as_cpu("pooling", {on_cpu({2, 4, 8, 8}, 1)}, with_backward([](const Tensors& in) {
                       return at::max_pool2d(in[0], {2, 2}) + at::avg_pool2d(in[0], {2, 2});
                     }));
  expect_same_as_cpu("batch_norm",
                     {on_cpu({6, 4, 5}, 1), on_cpu({4}, 2), on_cpu({4}, 3)},
                     with_backward([](const Tensors& in) {
                       const at::Tensor mean = at::zeros_like(in[1]).detach();
                       const at::Tensor var = at::ones_like(in[1]).detach();
                       return at::batch_norm(
                           in[0], in[1], in[2], mean, var, true, 0.1, 1e-5, false);
                     }));
}

// x: [B, T, C]; w: q, k, v, o: [C, C], up, gate: [C, 2C], down: [2C, C], two norms: [C].
at::Tensor run_block(const Tensors& in) {
  const at::Tensor& x = in[0];
  const int64_t b = x.size(0);
  const int64_t t = x.size(1);
  const int64_t c = x.size(2);
  const auto heads = [&](const at::Tensor& y) { return y.view({b, t, 4, c / 4}).transpose(1, 2); };
  const at::Tensor n = at::layer_norm(x, {c}, in[8]);
  const at::Tensor attention = at::scaled_dot_product_attention(heads(at::matmul(n, in[1])),
                                                                heads(at::matmul(n, in[2])),
                                                                heads(at::matmul(n, in[3])),
                                                                {},
                                                                0.0,
                                                                true);
  const at::Tensor h = x + at::matmul(attention.transpose(1, 2).reshape({b, t, c}), in[4]);
  const at::Tensor m = at::layer_norm(h, {c}, in[9]);
  return h + at::matmul(at::silu(at::matmul(m, in[5])) * at::matmul(m, in[6]), in[7]);
}

TEST_F(LayersTest, TransformerBlock) {
  constexpr int64_t kWidth = 32;
  for (const at::ScalarType dtype : kTrainingTypes) {
    SCOPED_TRACE(c10::toString(dtype));
    Tensors inputs = {on_cpu({2, 11, kWidth}, 1, dtype)};
    for (uint64_t i = 0; i < 4; ++i) {
      inputs.push_back(on_cpu({kWidth, kWidth}, 2 + i, dtype) * 0.2);
    }
    inputs.push_back(on_cpu({kWidth, 2 * kWidth}, 6, dtype) * 0.2);
    inputs.push_back(on_cpu({kWidth, 2 * kWidth}, 7, dtype) * 0.2);
    inputs.push_back(on_cpu({2 * kWidth, kWidth}, 8, dtype) * 0.2);
    inputs.push_back(on_cpu({kWidth}, 9, dtype));
    inputs.push_back(on_cpu({kWidth}, 10, dtype));
    expect_same_as_cpu("block", inputs, with_backward(run_block));
  }
}

TEST_F(LayersTest, SecondDerivatives) {
  expect_same_as_cpu("double backward", {on_cpu({5}, 1)}, [](const Tensors& in) -> Tensors {
    const at::Tensor x = in[0].detach().requires_grad_();
    const at::Tensor y = (x.pow(3) * x.sin()).sum();
    y.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
    const at::Tensor first = x.grad();
    x.mutable_grad() = at::Tensor();
    first.sum().backward();
    const Tensors result = {first.detach(), x.grad().detach()};
    x.mutable_grad() = at::Tensor();
    return result;
  });
}

}  // namespace
}  // namespace swapline::testing
