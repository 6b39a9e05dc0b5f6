// TOML files: tables are sections, keys are the flags' names with '-' or '_'.
#include "trainer/command_line.h"
#include "trainer/options.h"

#include <algorithm>
#include <sstream>

#include <toml++/toml.h>

namespace swapline::trainer {
namespace {

std::string place(const std::string& path, const toml::source_region& source) {
  return path + ":" + std::to_string(source.begin.line);
}

// The value as it would stand on the command line; empty for what no option takes.
std::optional<std::string> scalar_text(const toml::node& node) {
  if (const auto* text = node.as_string()) {
    return text->get();
  }
  if (const auto* flag = node.as_boolean()) {
    return flag->get() ? "true" : "false";
  }
  if (const auto* number = node.as_integer()) {
    return std::to_string(number->get());
  }
  if (const auto* number = node.as_floating_point()) {
    std::ostringstream text;
    text.precision(17);
    text << number->get();
    return text.str();
  }
  return std::nullopt;
}

void apply_setting(const std::vector<Option>& table,
                   const std::string& path,
                   std::string_view section,
                   std::string_view key,
                   const toml::node& node) {
  const std::string name = with_dashes(section) + "." + with_dashes(key);
  const std::string source = place(path, node.source()) + ": " + name;
  const auto option = std::find_if(
      table.begin(), table.end(), [&](const Option& known) { return known.name == name; });
  if (option == table.end()) {
    throw UsageError(source + ": unknown option; swapline train --help lists those allowed");
  }
  const std::optional<std::string> text = scalar_text(node);
  if (!text) {
    throw UsageError(source + ": found a table, array or date, allowed is " +
                     option->allowed_text());
  }
  set_option(*option, *text, source);
}

}  // namespace

void apply_toml(Config& config, const std::string& path) {
  toml::table file;
  try {
    file = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    throw UsageError("--config: " + place(path, error.source()) + ": " +
                     std::string(error.description()));
  }
  const std::vector<Option> table = option_table(config);
  for (const auto& [section, node] : file) {
    const toml::table* fields = node.as_table();
    if (fields == nullptr) {
      throw UsageError(place(path, node.source()) + ": found \"" + std::string(section.str()) +
                       "\" outside a section, allowed is [section] with settings below");
    }
    for (const auto& [key, value] : *fields) {
      apply_setting(table, path, section.str(), key.str(), value);
    }
  }
}

}  // namespace swapline::trainer
