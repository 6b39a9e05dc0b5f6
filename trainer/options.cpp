// How the values of options are read, checked and shown.
#include "trainer/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace swapline::trainer {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) {
      return std::nullopt;
    }
  }
  return number;
}

std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.12g", number);
  return text;
}

class Reader {
 public:
  Reader(const Option& option, std::string_view text, const std::string& source)
      : option_(option), text_(text), source_(source) {}

  void operator()(bool* target) const {
    if (text_ != "true" && text_ != "false") {
      refuse();
    }
    *target = text_ == "true";
  }
  void operator()(std::string* target) const {
    const auto& allowed = option_.allowed;
    if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), text_) == allowed.end()) {
      refuse();
    }
    *target = text_;
  }
  void operator()(Bytes* target) const {
    const std::optional<size_t> bytes = parse_bytes(text_);
    if (!bytes) {
      refuse();
    }
    target->value = *bytes;
  }
  void operator()(int64_t* target) const { *target = in_range<int64_t>(); }
  void operator()(double* target) const { *target = in_range<double>(); }
  template <class Number>
  void operator()(std::optional<Number>* target) const {
    if (text_ == option_.unset) {
      target->reset();
    } else {
      *target = in_range<Number>();
    }
  }

 private:
  template <class Number>
  Number in_range() const {
    const std::optional<Number> number = parse_number<Number>(text_);
    if (!number) {
      refuse();
    }
    const auto value = static_cast<double>(*number);
    if (value < option_.min || value > option_.max ||
        (option_.min_excluded && value == option_.min)) {
      refuse();
    }
    return *number;
  }
  [[noreturn]] void refuse() const {
    throw UsageError(source_ + ": found \"" + std::string(text_) + "\", allowed is " +
                     option_.allowed_text());
  }

  const Option& option_;
  std::string_view text_;
  const std::string& source_;
};

struct Writer {
  const Option& option;

  std::string operator()(const bool* value) const { return *value ? "true" : "false"; }
  std::string operator()(const int64_t* value) const { return std::to_string(*value); }
  std::string operator()(const double* value) const { return number_text(*value); }
  std::string operator()(const std::string* value) const { return *value; }
  std::string operator()(const Bytes* value) const { return bytes_text(value->value); }
  template <class Number>
  std::string operator()(const std::optional<Number>* value) const {
    return value->has_value() ? (*this)(&**value) : option.unset;
  }
};

std::string range_text(const Option& option) {
  const bool has_min = std::isfinite(option.min);
  const bool has_max = std::isfinite(option.max);
  std::string text;
  if (has_min) {
    text += (option.min_excluded ? " above " : " of at least ") + number_text(option.min);
  }
  if (has_max) {
    text += (has_min ? " and at most " : " of at most ") + number_text(option.max);
  }
  return text;
}

}  // namespace

std::string Option::allowed_text() const {
  struct Kind {
    std::string operator()(bool*) const { return "true or false"; }
    std::string operator()(std::string*) const { return "a text"; }
    std::string operator()(Bytes*) const { return "a size such as 4096, 96MiB or 1.5GB"; }
    std::string operator()(int64_t*) const { return "a whole number"; }
    std::string operator()(double*) const { return "a number"; }
    std::string operator()(std::optional<int64_t>*) const { return unset + " or a whole number"; }
    std::string operator()(std::optional<double>*) const { return unset + " or a number"; }
    const std::string& unset;
  };
  if (!allowed.empty()) {
    return "one of: " + joined(allowed);
  }
  return std::visit(Kind{unset}, target) + range_text(*this);
}

void set_option(const Option& option, std::string_view text, const std::string& source) {
  std::visit(Reader(option, text, source), option.target);
}

std::string value_text(const Option& option) {
  return std::visit([&](auto* value) { return Writer{option}(value); }, option.target);
}

std::string with_dashes(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {{"TiB", 0x1p40},
                           {"GiB", 0x1p30},
                           {"MiB", 0x1p20},
                           {"KiB", 0x1p10},
                           {"TB", 1e12},
                           {"GB", 1e9},
                           {"MB", 1e6},
                           {"KB", 1e3},
                           {"B", 1}};

}  // namespace

std::optional<size_t> parse_bytes(std::string_view text) {
  double scale = 1;
  for (const Unit& unit : kUnits) {
    if (text.ends_with(unit.name)) {
      text.remove_suffix(unit.name.size());
      scale = unit.bytes;
      break;
    }
  }
  while (text.ends_with(' ')) {
    text.remove_suffix(1);
  }
  const std::optional<double> number = parse_number<double>(text);
  if (!number || *number < 0 || *number * scale >= 0x1p63) {
    return std::nullopt;
  }
  return static_cast<size_t>(std::llround(*number * scale));
}

std::string bytes_text(size_t bytes) {
  for (const Unit& unit : kUnits) {
    if (unit.name.ends_with("iB") && static_cast<double>(bytes) >= unit.bytes) {
      const double number = static_cast<double>(bytes) / unit.bytes;
      char text[32];
      std::snprintf(text,
                    sizeof(text),
                    number == std::floor(number) ? "%.0f%s" : "%.2f%s",
                    number,
                    unit.name.data());
      return text;
    }
  }
  return std::to_string(bytes);
}

}  // namespace swapline::trainer
