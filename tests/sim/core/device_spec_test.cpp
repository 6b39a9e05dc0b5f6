// Presets: names, sane figures, and what is said about a name that does not exist.
#include "sim/core/device_spec.h"

#include <set>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace swapline::sim {
namespace {

TEST(DeviceSpec, PresetsHaveTheNamesTheDocumentsPromise) {
  for (const char* name :
       {"ascend-910b", "a100-80g", "h100-sxm", "h200-sxm", "gh200", "rtx-4090", "tiny", "trial"}) {
    EXPECT_EQ(preset(name).name, name);
  }
}

TEST(DeviceSpec, PresetNamesAreUnique) {
  std::set<std::string> names;
  for (const DeviceSpec& spec : presets()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
  }
}

TEST(DeviceSpec, EveryPresetHasASourceAndPositiveRates) {
  for (const DeviceSpec& spec : presets()) {
    SCOPED_TRACE(spec.name);
    EXPECT_FALSE(spec.source.empty());
    EXPECT_GT(spec.memory_bytes, 0U);
    EXPECT_GT(spec.memory_bytes_per_s, 0);
    EXPECT_GT(spec.h2d_bytes_per_s, 0);
    EXPECT_GT(spec.d2h_bytes_per_s, 0);
    EXPECT_GT(spec.peer_bytes_per_s, 0);
    EXPECT_GT(spec.pinned_bytes_per_s, 0);
    EXPECT_GE(spec.flops(Precision::kFloat16), spec.flops(Precision::kFloat32));
    EXPECT_GE(spec.flops(Precision::kFloat32), spec.flops(Precision::kFloat64));
    EXPECT_GT(spec.flops(Precision::kFloat64), 0);
    EXPECT_GT(spec.compute_efficiency, 0);
    EXPECT_LE(spec.compute_efficiency, 1);
    EXPECT_LT(spec.h2d_bytes_per_s, spec.memory_bytes_per_s);
  }
}

TEST(DeviceSpec, FlopsIncludeTheEfficiency) {
  DeviceSpec spec;
  spec.float32_flops = 100;
  spec.compute_efficiency = 0.5;
  EXPECT_EQ(spec.flops(Precision::kFloat32), 50);
}

TEST(DeviceSpec, UnknownNameIsRefusedNamingThePresetsThereAre) {
  try {
    preset("h1000");
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'h1000'"), std::string::npos) << text;
    for (const DeviceSpec& spec : presets()) {
      EXPECT_NE(text.find(spec.name), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace swapline::sim
