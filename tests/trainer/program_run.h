// Runs the program as a user does, and keeps what it said and wrote.
#pragma once

#include "tests/trainer/temporary_folder.h"

#include <string>

#include <nlohmann/json.hpp>

namespace swapline::trainer {

struct ProgramRun {
  int status = 0;  // its exit status; above 128: killed by a signal
  std::string out;
  std::string err;
  nlohmann::json summary;  // null when it wrote none
  std::string trace;
};

ProgramRun run_program(const std::string& arguments);

// A run of `swapline train` on a small model that takes well under a second, with more arguments.
ProgramRun train_small(const std::string& arguments = "");

// loss and grad_norm of each step, as printed in summary.json.
std::string losses_of(const ProgramRun& run);

}  // namespace swapline::trainer
