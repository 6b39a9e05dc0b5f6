// The table of options: the one source of names, units, help and limits for flags, TOML and help.
#pragma once

#include "trainer/config.h"

#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace swapline::trainer {

using OptionTarget = std::variant<bool*,
                                  int64_t*,
                                  double*,
                                  std::string*,
                                  Bytes*,
                                  std::optional<int64_t>*,
                                  std::optional<double>*>;

struct Option {
  std::string name;  // "optimizer.weight-decay": section, then field with dashes
  OptionTarget target;
  std::string unit = "";  // "" where there is none
  std::string help = "";
  std::vector<std::string> allowed = {};  // words allowed; empty: any
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_excluded = false;
  std::string unset = "none";  // the word for an optional number that is not given

  bool is_bool() const { return std::holds_alternative<bool*>(target); }
  std::string section() const { return name.substr(0, name.find('.')); }
  std::string field() const { return name.substr(name.find('.') + 1); }
  // "a number, at least 1", "one of: sim, cpu": for help and errors.
  std::string allowed_text() const;
};

// Options that read and write `config`, which must outlive them.
std::vector<Option> option_table(Config& config);

// Reads `text` into the option. `source` names the place for the error, e.g. "--optimizer.lr".
// Throws: UsageError naming the option, what was found and what is allowed.
void set_option(const Option& option, std::string_view text, const std::string& source);

// The option's present value as it would be written on the command line.
std::string value_text(const Option& option);

// "96MiB", "1.5GB", "4096" in bytes; nullopt: not a size.
std::optional<size_t> parse_bytes(std::string_view text);
// The largest unit that divides evenly enough: "96MiB", "1.50GiB".
std::string bytes_text(size_t bytes);

// Section and field with '_' turned into '-'.
std::string with_dashes(std::string_view name);

}  // namespace swapline::trainer
