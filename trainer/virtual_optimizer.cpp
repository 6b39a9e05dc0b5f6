// Sizes in GiB from words, and what they go with.
#include "trainer/virtual_optimizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace swapline::trainer {
namespace {

[[noreturn]] void refuse(const std::string& found, const std::string& allowed) {
  throw UsageError("--optimizer.virtual-optimizer-size: found " + found + ", allowed is " +
                   allowed);
}

// "2.5" in bytes; nullopt: not a number of GiB.
std::optional<size_t> bytes_in(std::string_view text) {
  double gib = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gib);
  if (error != std::errc() || end != text.data() + text.size() || !(gib >= 0) ||
      !std::isfinite(gib)) {
    return std::nullopt;
  }
  const double bytes = gib * 0x1p30;
  return bytes < 0x1p63 ? static_cast<size_t>(bytes) : SIZE_MAX;
}

}  // namespace

std::vector<size_t> virtual_optimizer_bytes(const OptimizerConfig& config, size_t num_ranks) {
  if (!config.virtual_optimizer) {
    return std::vector<size_t>(num_ranks, 0);
  }
  const std::string& text = config.virtual_optimizer_size;
  if (text == "all") {
    return std::vector<size_t>(num_ranks, SIZE_MAX);
  }
  std::vector<size_t> sizes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto bytes = bytes_in(std::string_view(text).substr(begin, end - begin));
    if (!bytes) {
      refuse("\"" + text + "\"",
             "all, or a number of GiB, at least 0, or one for each pipeline rank, "
             "comma-separated");
    }
    sizes.push_back(*bytes);
    begin = end + 1;
  }
  if (sizes.size() == 1) {
    return std::vector<size_t>(num_ranks, sizes.front());
  }
  if (sizes.size() != num_ranks) {
    refuse(std::to_string(sizes.size()) + " sizes",
           "one, or one for each of " + std::to_string(num_ranks) +
               " pipeline ranks (--parallelism.pipeline-parallel-degree)");
  }
  return sizes;
}

void check_virtual_optimizer(const Config& config) {
  virtual_optimizer_bytes(config.optimizer,
                          static_cast<size_t>(config.parallelism.pipeline_parallel_degree));
  if (config.optimizer.virtual_optimizer && config.device.type == "cpu") {
    throw UsageError(
        "--optimizer.virtual-optimizer: found with --device.type cpu, which has no second memory "
        "to address; allowed with --device.type sim, cuda, npu or xpu");
  }
}

}  // namespace swapline::trainer
