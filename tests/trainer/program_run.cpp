// Starting the program in a folder of its own.
#include "tests/trainer/program_run.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <sys/wait.h>

namespace swapline::trainer {
namespace {

std::string content_of(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

}  // namespace

ProgramRun run_program(const std::string& arguments) {
  const TemporaryFolder folder;
  const std::string command = "cd '" + folder.path() + "' && timeout 240 '" SWAPLINE_PROGRAM "' " +
                              arguments + " >out 2>err";
  const int status = std::system(command.c_str());
  ProgramRun run;
  run.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  run.out = content_of(folder.path("out"));
  run.err = content_of(folder.path("err"));
  run.summary = nlohmann::json::parse(content_of(folder.path("outputs/summary.json")),
                                      nullptr,
                                      /*allow_exceptions=*/false);
  if (run.summary.is_discarded()) {
    run.summary = nullptr;
  }
  run.trace = content_of(folder.path("outputs/trace.json"));
  return run;
}

ProgramRun train_small(const std::string& arguments) {
  return run_program(
      "train --training.steps 4 --training.seq-len 64 --training.local-batch-size 2 " + arguments);
}

std::string losses_of(const ProgramRun& run) {
  std::string losses;
  for (const auto& step : run.summary["steps"]) {
    losses += step["loss"].dump() + " " + step["grad_norm"].dump() + "\n";
  }
  return losses;
}

}  // namespace swapline::trainer
