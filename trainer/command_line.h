// From command line and TOML file to a Config.
#pragma once

#include "trainer/config.h"

#include <optional>
#include <string>
#include <vector>

namespace swapline::trainer {

struct Command {
  enum class Kind { kTrain, kDevices, kPrintAndExit };
  Kind kind = Kind::kTrain;
  Config config;
  std::string text;  // kPrintAndExit: the help
};

// `arguments`: without the program's name. Later words win, --config files included.
// Throws: UsageError, one line.
Command parse_command_line(const std::vector<std::string>& arguments);

// Reads the settings of a TOML file into `config`; what it does not name stays.
// Throws: UsageError naming file, line and setting.
void apply_toml(Config& config, const std::string& path);

}  // namespace swapline::trainer
