// A made-up folder of packages: NAME/lib/python3.11/site-packages.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace swapline::testing {

class PackagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name =
        (std::filesystem::temp_directory_path() / "swapline_packages_XXXXXX").string();
    prefix_ = mkdtemp(name.data());
    std::filesystem::create_directories(torch_lib());
  }
  void TearDown() override { std::filesystem::remove_all(prefix_); }

  std::filesystem::path packages() const { return prefix_ / "lib/python3.11/site-packages"; }
  std::filesystem::path torch_lib() const { return packages() / "torch/lib"; }

  void write(const std::filesystem::path& file, const std::string& text = "") const {
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::filesystem::path prefix_;
};

}  // namespace swapline::testing
