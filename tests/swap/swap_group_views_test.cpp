// Views, slices, transposes, expanded tensors and aliases come back as they were, each storage
// copied once, whatever the way of letting go.
#include "swapline/swap/swap_group.h"
#include "tests/support/sim_test.h"
#include "tests/support/tensors.h"

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace swapline {
namespace {

using testing::random_tensor;
using testing::same_bits;

struct ViewCase {
  std::string name;
  // Tensors that look at one storage.
  std::function<std::vector<at::Tensor>(const at::Tensor& base)> make;
};

void PrintTo(const ViewCase& view_case, std::ostream* out) {
  *out << view_case.name;
}

class SwapViewsTest : public testing::SimTest,
                      public ::testing::WithParamInterface<std::tuple<ViewCase, Release>> {};

TEST_P(SwapViewsTest, ComeBackWithSizesStridesOffsetsAndBits) {
  const auto& [view_case, release] = GetParam();
  SwapContext context(device());
  const std::vector<at::Tensor> expected = view_case.make(random_tensor({6, 8}, 3));
  std::vector<at::Tensor> tensors = view_case.make(random_tensor({6, 8}, 3));
  const size_t storage_bytes = tensors.front().storage().nbytes();
  std::vector<uint32_t> versions;
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(tensor._version());
  }
  SwapGroup group(context, tensors, {"views", release});
  EXPECT_EQ(group.bytes(), storage_bytes);
  const std::vector<at::Tensor> held =
      release == Release::kInPlace ? tensors : std::vector<at::Tensor>{};
  tensors.clear();
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  const at::Tensor garbage = at::full({6, 8}, 9.0, expected.front().options());
  group.swap_in();
  group.wait_swap_in();
  EXPECT_EQ(context.copies().stats().num_copies_out, 1);
  EXPECT_EQ(context.copies().stats().bytes_out, static_cast<int64_t>(storage_bytes));
  const std::vector<at::Tensor> back = group.tensors();
  ASSERT_EQ(back.size(), expected.size());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].sizes(), expected[i].sizes());
    EXPECT_EQ(back[i].strides(), expected[i].strides());
    EXPECT_EQ(back[i].storage_offset(), expected[i].storage_offset());
    EXPECT_EQ(back[i].storage().unsafeGetStorageImpl(),
              back.front().storage().unsafeGetStorageImpl());
    EXPECT_TRUE(same_bits(back[i], expected[i]));
    if (!held.empty()) {
      EXPECT_EQ(held[i]._version(), versions[i]);
    }
  }
}

std::vector<ViewCase> view_cases() {
  using Tensors = std::vector<at::Tensor>;
  return {
      {"Whole", [](const at::Tensor& t) { return Tensors{t}; }},
      {"Slice", [](const at::Tensor& t) { return Tensors{t.slice(0, 2, 5).slice(1, 1, 8, 3)}; }},
      {"Transpose", [](const at::Tensor& t) { return Tensors{t.t()}; }},
      {"Expanded", [](const at::Tensor& t) { return Tensors{t[2].unsqueeze(0).expand({5, 8})}; }},
      {"Overlapping",
       [](const at::Tensor& t) { return Tensors{t.as_strided({10, 4}, {2, 1}, 3)}; }},
      {"OffsetScalar", [](const at::Tensor& t) { return Tensors{t[5][7]}; }},
      {"ReinterpretedBytes", [](const at::Tensor& t) { return Tensors{t.view(at::kInt)}; }},
      {"Aliases",
       [](const at::Tensor& t) {
         return Tensors{t, t.t(), t.slice(0, 1, 6), t.slice(1, 0, 8, 2), t.view({48})};
       }},
  };
}

INSTANTIATE_TEST_SUITE_P(All,
                         SwapViewsTest,
                         ::testing::Combine(::testing::ValuesIn(view_cases()),
                                            ::testing::Values(Release::kDrop, Release::kInPlace)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  (std::get<1>(info.param) == Release::kDrop ? "Drop" : "InPlace");
                         });

class SwapManyTest : public testing::SimTest {};

TEST_F(SwapManyTest, SeveralStoragesMoveAsOne) {
  SwapContext context(device());
  SwapGroup group(context, {random_tensor({10}, 1), random_tensor({20, 3}, 2).t()});
  EXPECT_EQ(group.bytes(), 40U + 240U);
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  group.swap_in();
  group.wait_swap_in();
  EXPECT_TRUE(same_bits(group.tensors()[0], random_tensor({10}, 1)));
  EXPECT_TRUE(same_bits(group.tensors()[1], random_tensor({20, 3}, 2).t()));
}

TEST_F(SwapManyTest, ComplexConjugatesStayConjugates) {
  SwapContext context(device());
  const at::Tensor complex = at::complex(random_tensor({8}, 1), random_tensor({8}, 2));
  SwapGroup group(context, {complex.conj()});
  ASSERT_TRUE(group.swap_out());
  group.release_device_storage();
  group.swap_in();
  group.wait_swap_in();
  EXPECT_TRUE(group.tensors().front().is_conj());
  EXPECT_TRUE(same_bits(group.tensors().front().resolve_conj(), complex.conj().resolve_conj()));
}

TEST_F(SwapManyTest, AStorageLargerThanASlabUsesSeveralPieces) {
  SwapContextOptions options;
  options.host.slab_bytes = size_t{64} << 10;
  SwapContext context(device(), options);
  SwapGroup group(context, {random_tensor({50'001}, 1)});
  ASSERT_TRUE(group.swap_out());
  EXPECT_EQ(context.copies().stats().num_copies_out, 4);
  group.release_device_storage();
  group.swap_in();
  group.wait_swap_in();
  EXPECT_TRUE(same_bits(group.tensors().front(), random_tensor({50'001}, 1)));
}

}  // namespace
}  // namespace swapline
