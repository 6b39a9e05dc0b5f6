// Each expectation says which run it was about by what the run wrote.
#include "tests/trainer/program_expectations.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace swapline::trainer {

void expect_trained(const ProgramRun& run) {
  ASSERT_EQ(run.status, 0) << run.err;
  ASSERT_FALSE(run.summary.is_null());
  EXPECT_EQ(run.summary["races"], 0);
}

void expect_same_losses(const ProgramRun& run, const ProgramRun& same) {
  expect_trained(run);
  expect_trained(same);
  if (!testing::Test::HasFatalFailure()) {
    EXPECT_EQ(losses_of(run), losses_of(same));
  }
}

void expect_swapped(const ProgramRun& run) {
  expect_trained(run);
  if (testing::Test::HasFatalFailure()) {
    return;
  }
  const nlohmann::json& inputs = run.summary["layer_input"];
  EXPECT_EQ(inputs["enabled"], true);
  EXPECT_GT(inputs["swapped_bytes_per_step"], 0);
  EXPECT_LE(inputs["peak_resident_inputs"], 2);
  EXPECT_EQ(inputs["prefetch_misses_after_first_step"], 0);
}

double last_step_ms(const ProgramRun& run) {
  return run.summary.is_null() ? 0 : run.summary["steps"].back()["step_ms"].get<double>();
}

void expect_usage_error(const std::string& arguments, const std::vector<std::string>& parts) {
  const ProgramRun run = run_program("train " + arguments);
  EXPECT_EQ(run.status, 2) << arguments << "\n" << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << arguments << "\n" << run.err;
  EXPECT_TRUE(run.err.starts_with("swapline: ")) << arguments << "\n" << run.err;
  for (const std::string& part : parts) {
    EXPECT_NE(run.err.find(part), std::string::npos) << part << " is not in: " << run.err;
  }
}

}  // namespace swapline::trainer
