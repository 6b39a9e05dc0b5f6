// Clipping by one norm over several devices: the bits of clipping on one.
#include "tests/trainer/parallel/devices_test.h"
#include "trainer/clip.h"

#include <ATen/ATen.h>

namespace swapline::trainer {
namespace {

using swapline::testing::same_bits;

class ClipDevicesTest : public DevicesTest {
 protected:
  at::Tensor gradient(size_t device, uint64_t seed) {
    return random_on(device, {3 + static_cast<int64_t>(seed), 5}, seed);
  }
};

TEST_F(ClipDevicesTest, SeveralDevicesHaveTheBitsOfOne) {
  for (const double max_norm : {1.0, 1e6}) {
    for (const size_t num_devices : {1, 2, 4}) {
      SCOPED_TRACE(num_devices);
      std::vector<std::vector<at::Tensor>> spread(num_devices);
      std::vector<GradientPlace> counted;
      std::vector<at::Tensor> on_one;
      for (uint64_t seed = 0; seed < 9; ++seed) {
        const size_t device = seed * num_devices / 9;
        counted.emplace_back(device, spread[device].size());
        spread[device].push_back(gradient(device, seed));
        on_one.push_back(gradient(0, seed));
      }
      const at::Tensor found = clip_grad_norm(spread, counted, max_norm);
      EXPECT_EQ(found.device(), device_at(0).torch_device());
      EXPECT_TRUE(same_bits(found, clip_grad_norm(on_one, max_norm)));
      for (size_t i = 0; i < on_one.size(); ++i) {
        const auto& [device, place] = counted[i];
        EXPECT_TRUE(same_bits(spread[device][place], on_one[i])) << i;
      }
    }
  }
}

// The order in which gradients count is the caller's, not the devices'.
TEST_F(ClipDevicesTest, GradientsCountInTheOrderThatIsGiven) {
  const std::vector<std::vector<at::Tensor>> spread = {{gradient(0, 1), gradient(0, 2)},
                                                       {gradient(1, 3), gradient(1, 4)}};
  const std::vector<at::Tensor> on_one = {
      gradient(0, 4), gradient(0, 2), gradient(0, 3), gradient(0, 1)};
  const at::Tensor found = clip_grad_norm(spread, {{1, 1}, {0, 1}, {1, 0}, {0, 0}}, 1.0);
  EXPECT_TRUE(same_bits(found, clip_grad_norm(on_one, 1.0)));
  EXPECT_TRUE(same_bits(spread[1][1], on_one[0]));
  EXPECT_TRUE(same_bits(spread[0][0], on_one[3]));
}

TEST_F(ClipDevicesTest, CopiesAreScaledButDoNotCount) {
  // The second gradient of each device is that of one parameter which both hold.
  const std::vector<std::vector<at::Tensor>> spread = {{gradient(0, 1), gradient(0, 7)},
                                                       {gradient(1, 2), gradient(1, 7)}};
  const std::vector<at::Tensor> on_one = {gradient(0, 1), gradient(0, 7), gradient(0, 2)};
  const at::Tensor found = clip_grad_norm(spread, {{0, 0}, {0, 1}, {1, 0}}, 1.0);
  EXPECT_TRUE(same_bits(found, clip_grad_norm(on_one, 1.0)));
  EXPECT_TRUE(same_bits(spread[0], {on_one[0], on_one[1]}));
  EXPECT_TRUE(same_bits(spread[1], {on_one[2], on_one[1]}));
}

TEST_F(ClipDevicesTest, TheHostDoesNotWait) {
  const std::vector<std::vector<at::Tensor>> spread = {{gradient(0, 1)}, {gradient(1, 2)}};
  const at::Tensor busy = swapline::testing::keep_busy(500);
  clip_grad_norm(spread, {{0, 0}, {1, 0}}, 1.0);
  EXPECT_LT(sim().host_time(0), sim().stream_time(0, 0));
}

}  // namespace
}  // namespace swapline::trainer
