// Small values that belong to a checkpoint, as a JSON file that any tool reads.
#pragma once

#include "swapline/checkpoint/file_ops.h"
#include "swapline/export.h"

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace swapline {

using Scalar = std::variant<bool, int64_t, double, std::string, std::vector<double>>;
// Names are free; no nesting. Doubles come back with all their bits; they must be finite.
using Scalars = std::map<std::string, Scalar>;

// Writes and syncs the file. Throws c10::Error.
SWAPLINE_API void write_scalars(FileOps& ops, const std::string& path, const Scalars& scalars);

// Throws c10::Error that names the file, and the value where one is of another kind.
SWAPLINE_API Scalars read_scalars(const std::string& path);

// The whole number of that name. `path` is for the error. Throws c10::Error when it is not there or
// of another kind.
SWAPLINE_API int64_t int_of(const Scalars& scalars,
                            const std::string& name,
                            const std::string& path);

}  // namespace swapline
