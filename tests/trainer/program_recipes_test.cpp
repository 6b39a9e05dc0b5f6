// Every recipe in configs/ runs, in fewer steps than it asks for.
#include "tests/trainer/program_run.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

std::vector<std::string> recipes() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SWAPLINE_CONFIGS)) {
    names.push_back(entry.path().stem());
  }
  return names;
}

class ProgramRecipes : public ::testing::TestWithParam<std::string> {
 protected:
  static ProgramRun run(const std::string& more = "") {
    return run_program("train --config " SWAPLINE_CONFIGS "/" + GetParam() +
                       ".toml --training.steps 2 " + more);
  }
};

TEST_P(ProgramRecipes, Runs) {
  const ProgramRun run = ProgramRecipes::run();
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.summary["races"], 0);
  EXPECT_EQ(run.summary["steps"].size(), 2U);
  if (run.summary["optimizer"]["swap"] == true) {
    EXPECT_EQ(run.summary["optimizer"]["state_bytes_on_device_outside_step"], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Configs,
                         ProgramRecipes,
                         ::testing::ValuesIn(recipes()),
                         [](const auto& info) { return info.param; });

// The swapped recipes differ from the plain runs in memory only.
TEST(ProgramRecipesBits, SwappedDebugModelsHaveTheLossesOfPlainOnes) {
  for (const std::string name : {"debugmodel_swap", "deepseek_v3_debugmodel_swap"}) {
    const std::string recipe =
        "train --config " SWAPLINE_CONFIGS "/" + name + ".toml --training.steps 3 ";
    const ProgramRun swapped = run_program(recipe);
    const ProgramRun plain =
        run_program(recipe +
                    "--optimizer.no-swap-optimizer --swap-layer-input.no-enable "
                    "--device.memory 1GiB");
    ASSERT_EQ(swapped.status, 0) << swapped.err;
    ASSERT_EQ(plain.status, 0) << plain.err;
    EXPECT_EQ(losses_of(swapped), losses_of(plain));
    EXPECT_LT(swapped.summary["peak_allocated_bytes"], plain.summary["peak_allocated_bytes"]);
  }
}

}  // namespace
}  // namespace swapline::trainer
