// Every refusal, with its reason.
#include "swapline/swap/eligibility.h"

#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"

#include <string>

#include <ATen/SparseTensorImpl.h>
#include <gmock/gmock.h>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::random_parameter;
using testing::random_tensor;

class EligibilityTest : public testing::SimTest {};

TEST_F(EligibilityTest, AnOrdinaryDeviceTensorIsValid) {
  const at::Tensor tensor = random_tensor({4, 4}, 1);
  EXPECT_TRUE(is_valid_for_swap(tensor));
  EXPECT_TRUE(is_valid_for_swap(tensor.t()));
  EXPECT_TRUE(is_valid_for_swap(tensor[1]));
  EXPECT_TRUE(is_valid_for_swap(random_parameter({4}, 2) * 2));
}

TEST_F(EligibilityTest, TensorsOffTheDeviceAreRefused) {
  EXPECT_THAT(is_valid_for_swap(at::Tensor()).reason, HasSubstr("undefined"));
  EXPECT_THAT(is_valid_for_swap(at::ones({2})).reason, HasSubstr("not in the memory of a device"));
  EXPECT_THAT(is_valid_for_swap(at::empty({2}, at::kMeta)).reason, HasSubstr("not in the memory"));
}

TEST_F(EligibilityTest, ParametersAndTheirViewsAreRefused) {
  const at::Tensor parameter = random_parameter({4, 4}, 1);
  EXPECT_THAT(is_valid_for_swap(parameter).reason, HasSubstr("is a parameter"));
  EXPECT_THAT(is_valid_for_swap(parameter.t()).reason, HasSubstr("a view of a parameter"));
  EXPECT_THAT(is_valid_for_swap(parameter[0].view({2, 2})).reason,
              HasSubstr("a view of a parameter"));
}

TEST_F(EligibilityTest, StoragesThatAreNotOursToMoveAreRefused) {
  const auto options = at::TensorOptions().device(device());
  EXPECT_THAT(is_valid_for_swap(at::empty({0}, options)).reason, HasSubstr("empty"));
  const at::Tensor tensor = random_tensor({4}, 1);
  c10::Storage foreign(c10::Storage::use_byte_size_t(),
                       tensor.nbytes(),
                       c10::DataPtr(tensor.mutable_data_ptr(), device()),
                       nullptr,
                       false);
  EXPECT_THAT(is_valid_for_swap(at::empty({0}, options).set_(foreign, 0, {4}, {1})).reason,
              HasSubstr("no allocator"));
  c10::Storage fixed(c10::Storage::use_byte_size_t(),
                     64,
                     tensor.storage().allocator()->allocate(64),
                     tensor.storage().allocator(),
                     false);
  EXPECT_THAT(is_valid_for_swap(at::empty({0}, options).set_(fixed, 0, {4}, {1})).reason,
              HasSubstr("cannot be resized"));
}

TEST_F(EligibilityTest, SparseTensorsAreRefused) {
  const at::Tensor sparse = at::detail::make_tensor<at::SparseTensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::SparsePrivateUse1), caffe2::TypeMeta::Make<float>());
  EXPECT_THAT(is_valid_for_swap(sparse).reason, HasSubstr("sparse"));
}

TEST_F(EligibilityTest, TheCustomCheckHasTheLastWord) {
  const at::Tensor tensor = random_tensor({4, 4}, 1);
  const auto small_only = [](const at::Tensor& t) { return t.numel() < 10; };
  EXPECT_THAT(is_valid_for_swap(tensor, small_only).reason, HasSubstr("custom check"));
  EXPECT_TRUE(is_valid_for_swap(tensor[0], small_only));
}

}  // namespace
}  // namespace swapline
