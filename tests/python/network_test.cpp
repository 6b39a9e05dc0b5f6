// What a process group lends to its network: gloo's threads hold a tensor a moment after they have
// said that they are done with it.
#include "python/src/sim_network.h"
#include "tests/support/sim_test.h"

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

namespace swapline::python {
namespace {

class LoanTest : public testing::SimTest {
 protected:
  static at::Tensor on_device(float value) {
    return at::full({256}, value, at::TensorOptions().device(device()));
  }
};

TEST_F(LoanTest, EndedItHoldsNothingWhoeverStillHasItsTensors) {
  at::Tensor tensor = on_device(3);
  Loan loan;
  const at::Tensor bytes = loan.bytes_of(tensor);
  const std::vector<at::Tensor> values = loan.values_of({tensor});
  EXPECT_EQ(bytes.nbytes(), tensor.nbytes());
  EXPECT_EQ(values[0][0].item<float>(), 3);
  EXPECT_EQ(values[0].const_data_ptr(), tensor.const_data_ptr());
  tensor.reset();
  EXPECT_GT(sim().live_bytes(), 0U) << "lent memory is there as long as the loan lasts";
  loan.end();
  EXPECT_EQ(sim().live_bytes(), 0U);
}

TEST_F(LoanTest, ThatNeverEndsHoldsTheMemoryForTheLastOfItsTensors) {
  at::Tensor bytes;
  {
    Loan loan;
    bytes = loan.bytes_of(on_device(1));
  }
  EXPECT_GT(sim().live_bytes(), 0U) << "the network may still write it";
  bytes.reset();
  EXPECT_EQ(sim().live_bytes(), 0U);
}

}  // namespace
}  // namespace swapline::python
