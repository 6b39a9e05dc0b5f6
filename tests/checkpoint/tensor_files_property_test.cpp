// Any names, sizes, numbers of tensors and limits of files.
#include "tests/checkpoint/tensors_on_disk.h"
#include "tests/trainer/temporary_folder.h"

#include <map>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

namespace swapline {
namespace {

constexpr at::ScalarType kDtypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kLong, at::kBool};

// Every character that JSON must escape, and such as are longer than a byte.
std::string any_name() {
  const std::vector<std::string> letters = {
      "a", "Z", ".", "/", "\"", "\\", "\n", "\t", " ", "\x01", "\x7f", "é", "层", "𝄞", "{", ":"};
  std::string name = "_";
  for (const auto letter :
       *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, letters.size()))) {
    name += letters[letter];
  }
  return name;
}

RC_GTEST_PROP(TensorFilesProperty, ComeBackWithTheirBits, ()) {
  const trainer::TemporaryFolder folder;
  std::map<std::string, at::Tensor> tensors;
  const auto num_tensors = *rc::gen::inRange(0, 12);
  for (int i = 0; i < num_tensors; ++i) {
    std::vector<int64_t> sizes(static_cast<size_t>(*rc::gen::inRange(0, 4)));
    for (int64_t& size : sizes) {
      size = *rc::gen::inRange<int64_t>(0, 9);
    }
    at::Tensor tensor = testing::random_bits(
        kDtypes[*rc::gen::inRange(0, 5)], sizes, *rc::gen::arbitrary<uint64_t>());
    if (tensor.dim() >= 2 && *rc::gen::arbitrary<bool>()) {
      tensor = tensor.transpose(0, -1);
    }
    tensors[any_name()] = tensor;
  }
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) {
    named.push_back({name, {tensor}});
  }
  testing::write_to(folder.path(), named, *rc::gen::inRange<size_t>(0, 2000));
  const TensorReader reader(folder.path());
  RC_ASSERT(reader.entries().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    RC_ASSERT(testing::has_same_bits(testing::read_from(reader, name), tensor));
  }
}

}  // namespace
}  // namespace swapline
