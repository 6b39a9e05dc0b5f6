// The log line to the letter, and the tables.
#include "trainer/console.h"

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

StepRecord record(int64_t step, double step_ms) {
  StepRecord record;
  record.step = step;
  record.loss = 5.5631;
  record.grad_norm = 2.03125;
  record.step_ms = step_ms;
  record.exposed_ms = 0.5;
  record.peak_reserved_bytes = size_t{512} << 20;
  return record;
}

const RateBasis kBasis{1000, 2e9, 1e14, size_t{1} << 30};

TEST(LogLine, ReadsLikeTorchtitansWithExposedTimeAtTheEnd) {
  EXPECT_EQ(log_line({record(1, 100)}, kBasis),
            "step:  1  loss:  5.56310  grad_norm:  2.0312  memory: 0.50GiB(50.00%)  tps: 10,000  "
            "tflops: 20.00  mfu: 20.00%  exposed: 0.50ms");
}

TEST(LogLine, RatesAreOverAllStepsSinceTheLastLine) {
  const std::string line = log_line({record(1, 100), record(2, 300)}, kBasis);
  EXPECT_NE(line.find("tps: 5,000"), std::string::npos) << line;
}

TEST(LogLine, UnknownIsNotANumber) {
  StepRecord dry = record(3, 100);
  dry.loss.reset();
  dry.grad_norm.reset();
  RateBasis basis = kBasis;
  basis.peak_flops = 0;
  const std::string line = log_line({dry}, basis);
  EXPECT_NE(line.find("loss:      n/a  grad_norm:     n/a"), std::string::npos) << line;
  EXPECT_NE(line.find("mfu: n/a"), std::string::npos) << line;
}

TEST(SettingsTable, MarksWhatDiffersFromTheDefault) {
  Config config;
  config.training.steps = 7;
  const std::string table = settings_table(config);
  EXPECT_NE(table.find("* training.steps"), std::string::npos);
  EXPECT_EQ(table.find("* training.seq-len"), std::string::npos);
  EXPECT_NE(table.find("  training.seq-len"), std::string::npos);
}

TEST(SummaryTable, SaysWhenTimesAreVirtual) {
  RunSummary summary;
  summary.steps = {record(1, 100)};
  EXPECT_NE(summary_table(summary, kBasis, true).find("virtual"), std::string::npos);
  EXPECT_EQ(summary_table(summary, kBasis, false).find("virtual"), std::string::npos);
}

TEST(Median, IsTheMiddle) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace swapline::trainer
