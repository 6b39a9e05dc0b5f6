// What a device's library that cannot be loaded is told as. Devices that can be are loaded in
// tests/backends.
#include "swapline/device/backend.h"

#include "sim/torch/sim.h"
#include "swapline/device/backend_files.h"
#include "tests/device/folder_fixture.h"
#include "tests/support/errors.h"

#include <gmock/gmock.h>

namespace swapline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

class BackendTest : public testing::PackagesTest {
 protected:
  std::string load_part(const std::string& type) const {
    return message_of([&] { detail::load_part_of_torch(type, torch_lib()); });
  }
  std::string load_npu() const {
    return message_of([&] { detail::load_torch_npu(torch_lib()); });
  }
};

TEST_F(BackendTest, TheCpuIsThereAlready) {
  EXPECT_EQ(message_of([] { const Backend backend("cpu"); }), "");
}

TEST_F(BackendTest, ADeviceOfThisProcessIsThereAlready) {
  sim::device();
  EXPECT_EQ(message_of([] { const Backend backend("sim"); }), "");
}

TEST_F(BackendTest, UnknownTypesAreRefusedWithTheKnownOnes) {
  EXPECT_THAT(message_of([] { const Backend backend("tpu"); }),
              AllOf(HasSubstr("\"tpu\""), HasSubstr("cpu, cuda, xpu, npu and sim")));
}

TEST_F(BackendTest, ATorchWithoutTheDeviceIsNamedByItsFolder) {
  EXPECT_THAT(load_part("cuda"),
              AllOf(HasSubstr("no libtorch_cuda.so in " + torch_lib().string()),
                    HasSubstr("built without cuda"),
                    HasSubstr("install")));
  EXPECT_THAT(load_part("xpu"), HasSubstr("no libtorch_xpu.so"));
}

TEST_F(BackendTest, ALibraryThatDoesNotLoadHasTheLoadersReason) {
  write(torch_lib() / "libtorch_cuda.so", "no library");
  EXPECT_THAT(load_part("cuda"),
              AllOf(HasSubstr("libtorch_cuda.so in " + torch_lib().string() + " does not load"),
                    HasSubstr("file too short")));
}

TEST_F(BackendTest, TorchNpuIsLookedForBesideTorch) {
  EXPECT_THAT(load_npu(),
              AllOf(HasSubstr("no libtorch_npu.so in " + (packages() / "torch_npu/lib").string()),
                    HasSubstr("install torch_npu")));
}

TEST_F(BackendTest, TheSimulatorsProcessHasNoRoomForAnNpu) {
  write(packages() / "torch_npu/lib/libtorch_npu.so");
  EXPECT_THAT(load_npu(), AllOf(HasSubstr("\"sim\""), HasSubstr("a process of its own")));
}

}  // namespace
}  // namespace swapline
