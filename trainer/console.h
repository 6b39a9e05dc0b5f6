// What the user sees: the table of settings, a line a step, a progress bar, the closing table.
#pragma once

#include "trainer/config.h"
#include "trainer/summary.h"

#include <cstdio>
#include <string>
#include <vector>

namespace swapline::trainer {

// What turns steps and times into rates.
struct RateBasis {
  int64_t tokens_per_step = 0;
  double flops_per_token = 0;
  double peak_flops = 0;  // per second; 0: unknown, then no mfu
  size_t capacity_bytes = 0;
};

// "step:  1  loss:  5.56310  grad_norm:  2.0312  ...": the last of `steps`, rates over all of them.
std::string log_line(const std::vector<StepRecord>& steps, const RateBasis& basis);

// "validate step: 10  loss:  5.50123  ...".
std::string validation_line(const ValidationRecord& record, const RateBasis& basis);

// Every setting by section; those that differ from their default are marked.
std::string settings_table(Config config);

std::string summary_table(const RunSummary& summary, const RateBasis& basis, bool is_virtual_time);

// A bar on stderr, drawn only when that is a terminal.
class ProgressBar {
 public:
  ProgressBar(bool wanted, int64_t num_steps);
  ~ProgressBar();
  void draw(int64_t step);
  void clear();

 private:
  bool is_shown_;
  int64_t num_steps_;
};

}  // namespace swapline::trainer
