// Which Python a package is for, and where its library is looked for.
#include "swapline/device/python_interpreter.h"

#include "tests/device/folder_fixture.h"
#include "tests/support/errors.h"

#include <gmock/gmock.h>

namespace swapline::detail {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

class PythonInterpreterTest : public testing::PackagesTest {
 protected:
  std::filesystem::path package() const { return packages() / "torch_npu"; }
};

TEST_F(PythonInterpreterTest, ThePackagesModuleTellsTheVersion) {
  write(package() / "_C.cpython-311-x86_64-linux-gnu.so");
  const PythonHome home = python_home(package());
  EXPECT_EQ(home.version, "3.11");
  EXPECT_EQ(home.packages, packages());
}

TEST_F(PythonInterpreterTest, VersionsWithoutALockHaveALetter) {
  write(package() / "_C.cpython-313t-x86_64-linux-gnu.so");
  EXPECT_EQ(python_home(package()).version, "3.13t");
}

TEST_F(PythonInterpreterTest, APackageWithoutItsModuleIsIncomplete) {
  EXPECT_THAT(message_of([&] { python_home(package()); }),
              AllOf(HasSubstr(package().string()), HasSubstr("install it again")));
}

TEST_F(PythonInterpreterTest, AnEnvironmentsLibraryIsThatOfItsBase) {
  write(prefix_ / "pyvenv.cfg", "home = /opt/python/bin\nversion = 3.11.7\n");
  EXPECT_THAT(libpython_candidates({packages(), "3.11"}),
              ElementsAre(prefix_ / "lib/libpython3.11.so.1.0",
                          "/opt/python/lib/libpython3.11.so.1.0",
                          "libpython3.11.so.1.0"));
}

TEST_F(PythonInterpreterTest, AMissingLibraryIsNamedWithWhereItWasLookedFor) {
  EXPECT_THAT(message_of([&] {
                import_in_python({packages(), "3.99"}, "torch_npu");
              }),
              AllOf(HasSubstr("no libpython3.99.so.1.0"),
                    HasSubstr((prefix_ / "lib").string() + ", the library path"),
                    HasSubstr("install it")));
}

}  // namespace
}  // namespace swapline::detail
