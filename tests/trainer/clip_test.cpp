// Clipping against the formula.
#include "trainer/clip.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

TEST(ClipGradNorm, ScalesToTheMaximum) {
  const std::vector<at::Tensor> gradients = {at::full({4}, 3.0), at::full({4}, 4.0)};
  const at::Tensor norm = clip_grad_norm(gradients, 1.0);
  EXPECT_FLOAT_EQ(norm.item<float>(), 10.0F);
  const at::Tensor factor = 1.0 / (at::scalar_tensor(10.0F) + 1e-6);
  EXPECT_TRUE(gradients[0].equal(at::full({4}, 3.0) * factor));
  EXPECT_TRUE(gradients[1].equal(at::full({4}, 4.0) * factor));
}

TEST(ClipGradNorm, SmallGradientsKeepTheirBits) {
  const at::Tensor before = at::full({5}, 0.1);
  const std::vector<at::Tensor> gradients = {before.clone()};
  clip_grad_norm(gradients, 1.0);
  EXPECT_TRUE(gradients[0].equal(before));
}

TEST(ClipGradNorm, NotANumberShowsInTheNorm) {
  const std::vector<at::Tensor> gradients = {at::full({2}, NAN), at::ones({2})};
  EXPECT_TRUE(std::isnan(clip_grad_norm(gradients, 1.0).item<float>()));
}

}  // namespace
}  // namespace swapline::trainer
