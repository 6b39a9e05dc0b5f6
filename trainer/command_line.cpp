// Flags by CLI11, from the table of options.
#include "trainer/command_line.h"

#include "trainer/options.h"
#include "trainer/parallel/layout.h"

#include <algorithm>

#include <CLI/CLI.hpp>

namespace swapline::trainer {
namespace {

constexpr const char* kTrainDescription =
    "Train a model on text. Booleans: --x.flag and --x.no-flag; '-' and '_' are alike; "
    "later words win.";

std::string help_text(const Option& option) {
  std::string text = option.help;
  if (!option.allowed.empty()) {
    text += "; " + option.allowed_text();
  }
  return text;
}

void add_flag(CLI::App& app, const Option& option) {
  const std::string names =
      "--" + option.name + ",!--" + option.section() + ".no-" + option.field();
  app.add_flag_function(
         names,
         [&option](int64_t count) {
           set_option(option, count > 0 ? "true" : "false", "--" + option.name);
         },
         option.help + " [" + value_text(option) + "]")
      ->trigger_on_parse()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->group(option.section());
}

void add_value(CLI::App& app, const Option& option) {
  app.add_option_function<std::string>(
         "--" + option.name,
         [&option](const std::string& text) { set_option(option, text, "--" + option.name); },
         help_text(option))
      ->trigger_on_parse()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name(option.unit.empty() ? "" : "(" + option.unit + ")")
      ->default_str("[" + value_text(option) + "]")
      ->group(option.section());
}

// CLI11 knows one spelling: dashes. Values, and what follows '=', stay as they are.
std::string normalized(const std::string& argument) {
  if (!argument.starts_with("--")) {
    return argument;
  }
  const size_t end = argument.find('=');
  return with_dashes(argument.substr(0, end)) +
         (end == std::string::npos ? "" : argument.substr(end));
}

void add_train_options(CLI::App& train, const std::vector<Option>& table, Config& config) {
  train
      .add_option_function<std::string>(
          "--config",
          [&config](const std::string& path) { apply_toml(config, path); },
          "TOML file with settings, applied where it stands among the flags")
      ->trigger_on_parse()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->type_name("FILE");
  for (const Option& option : table) {
    if (option.is_bool()) {
      add_flag(train, option);
    } else {
      add_value(train, option);
    }
  }
}

// CLI11 has its own exceptions for what it finds itself: missing values, no subcommand.
void parse(CLI::App& app, std::vector<std::string> arguments, Command& command) {
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes a vector from the back
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    command.kind = Command::Kind::kPrintAndExit;
    command.text = app.help();
  } catch (const CLI::RequiredError&) {
    throw UsageError("found no command, allowed is one of: train, devices");
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

Command parse_command_line(const std::vector<std::string>& arguments) {
  Command command;
  CLI::App app("Swapline: training with layer inputs and optimizer states in host memory.",
               "swapline");
  app.require_subcommand(1);
  CLI::App* train = app.add_subcommand("train", kTrainDescription);
  train->allow_extras();
  const CLI::App* devices = app.add_subcommand("devices", "List the simulated accelerators");
  const std::vector<Option> table = option_table(command.config);
  add_train_options(*train, table, command.config);

  std::vector<std::string> words;
  std::transform(arguments.begin(), arguments.end(), std::back_inserter(words), normalized);
  parse(app, words, command);
  if (command.kind == Command::Kind::kPrintAndExit) {
    return command;
  }
  if (devices->parsed()) {
    command.kind = Command::Kind::kDevices;
    return command;
  }
  if (const std::vector<std::string> unknown = train->remaining(); !unknown.empty()) {
    throw UsageError(unknown.front() +
                     ": unknown option; swapline train --help lists those allowed");
  }
  check_contradictions(command.config);
  make_layout(command.config);  // refuses schedules and stages that cannot be
  return command;
}

}  // namespace swapline::trainer
