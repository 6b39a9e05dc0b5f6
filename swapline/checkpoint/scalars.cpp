// Scalars to JSON and back.
#include "swapline/checkpoint/scalars.h"

#include <cmath>
#include <fstream>
#include <optional>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

namespace swapline {
namespace {

using Json = nlohmann::json;

std::optional<Scalar> scalar_of(const Json& value) {
  if (value.is_boolean()) {
    return value.get<bool>();
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  if (value.is_number()) {
    return value.get<double>();
  }
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (!value.is_array()) {
    return std::nullopt;
  }
  std::vector<double> numbers;
  for (const Json& number : value) {
    if (!number.is_number()) {
      return std::nullopt;
    }
    numbers.push_back(number.get<double>());
  }
  return numbers;
}

}  // namespace

void write_scalars(FileOps& ops, const std::string& path, const Scalars& scalars) {
  Json json = Json::object();
  for (const auto& [name, scalar] : scalars) {
    if (const auto* number = std::get_if<double>(&scalar)) {
      TORCH_CHECK(std::isfinite(*number), path, ": ", name, " is not finite");
    }
    std::visit([&](const auto& value) { json[name] = value; }, scalar);
  }
  const std::string text = json.dump(2) + "\n";
  const std::unique_ptr<OutputFile> file = ops.create(path);
  file->write(text.data(), text.size());
  file->sync();
}

Scalars read_scalars(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.is_open(), path, ": cannot be read");
  const Json json = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK(json.is_object(), path, ": is no JSON object");
  Scalars scalars;
  for (const auto& [name, value] : json.items()) {
    const std::optional<Scalar> scalar = scalar_of(value);
    TORCH_CHECK(scalar.has_value(),
                path,
                ": ",
                name,
                ": found ",
                value.dump(),
                ", allowed is a number, a text, true, false, or a list of numbers");
    scalars[name] = *scalar;
  }
  return scalars;
}

int64_t int_of(const Scalars& scalars, const std::string& name, const std::string& path) {
  const auto found = scalars.find(name);
  TORCH_CHECK(found != scalars.end(), path, ": ", name, " is missing");
  const auto* number = std::get_if<int64_t>(&found->second);
  TORCH_CHECK(number != nullptr, path, ": ", name, ": allowed is a whole number");
  return *number;
}

}  // namespace swapline
