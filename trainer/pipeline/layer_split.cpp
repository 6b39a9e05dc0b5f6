// Layers to stages: evenly, by one number, or as given.
#include "trainer/pipeline/layer_split.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string>

namespace swapline::trainer {
namespace {

constexpr const char* kLayersOption = "--parallelism.pipeline-parallel-layers-per-stage";
constexpr const char* kDegreeOption = "--parallelism.pipeline-parallel-degree";

[[noreturn]] void refuse(const std::string& message) {
  throw std::invalid_argument(message);
}

std::string joined(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) {
    text += (text.empty() ? "" : ",") + std::to_string(number);
  }
  return text;
}

// Layers for the stages that must have some: the last one has the head, the first the embedding.
std::vector<int64_t> split_among_few(int64_t num_layers, int num_stages) {
  std::vector<int64_t> layers(static_cast<std::size_t>(num_stages), 1);
  layers.back() = 0;
  layers.front() = num_layers == num_stages - 1 ? 1 : 0;
  return layers;
}

std::vector<int64_t> split_evenly(int64_t num_layers, int num_stages) {
  if (num_layers < num_stages) {
    return split_among_few(num_layers, num_stages);
  }
  std::vector<int64_t> layers(static_cast<std::size_t>(num_stages), num_layers / num_stages);
  const int left_over = static_cast<int>(num_layers % num_stages);
  for (int stage = num_stages - 1 - left_over; stage < num_stages - 1; ++stage) {
    ++layers[static_cast<std::size_t>(stage)];
  }
  return layers;
}

std::vector<int64_t> split_by(int64_t each, int64_t num_layers, int num_stages) {
  // Asked this way round, the product cannot overflow.
  const int64_t most = (num_layers - 1) / (num_stages - 1);
  if (each < 1 || each > most) {
    refuse(std::string(kLayersOption) + ": found " + std::to_string(each) + " for " +
           std::to_string(num_layers) + " layers on " + std::to_string(num_stages) +
           " stages, allowed is 1 to " + std::to_string(most) +
           ": the last stage takes the rest, at least 1");
  }
  std::vector<int64_t> layers(static_cast<std::size_t>(num_stages), each);
  layers.back() = num_layers - each * (num_stages - 1);
  return layers;
}

void check_list(int64_t num_layers, int num_stages, const std::vector<int64_t>& given) {
  const std::string found = std::string(kLayersOption) + ": found " + joined(given) + ", ";
  if (given.size() != static_cast<std::size_t>(num_stages)) {
    refuse(found + std::to_string(given.size()) + " numbers, allowed is one for each of the " +
           std::to_string(num_stages) + " stages, or a single one for all: turn it, " +
           kDegreeOption + " or --parallelism.pipeline-parallel-schedule");
  }
  // Each no more than all first: the sum cannot overflow.
  for (std::size_t stage = 0; stage < given.size(); ++stage) {
    const bool may_be_empty = stage == 0 || stage + 1 == given.size();
    if (given[stage] < (may_be_empty ? 0 : 1) || given[stage] > num_layers) {
      refuse(found + "allowed is 1 to " + std::to_string(num_layers) +
             " layers for each stage, and 0 for the first and the last");
    }
  }
  const int64_t sum = std::accumulate(given.begin(), given.end(), int64_t{0});
  if (sum != num_layers) {
    refuse(found + std::to_string(sum) + " layers together, allowed is the " +
           std::to_string(num_layers) + " of the model");
  }
}

}  // namespace

std::vector<int64_t> split_layers(int64_t num_layers, int num_stages, std::vector<int64_t> given) {
  if (num_stages < 1) {
    refuse("found " + std::to_string(num_stages) + " stages, allowed is 1 or more: raise " +
           kDegreeOption);
  }
  if (num_layers < std::max(1, num_stages - 2)) {
    refuse("found " + std::to_string(num_layers) + " layers for " + std::to_string(num_stages) +
           " stages, allowed is at least one layer for each but the first and the last: lower " +
           kDegreeOption +
           " or take a --parallelism.pipeline-parallel-schedule of fewer stages per rank");
  }
  if (given.empty()) {
    return split_evenly(num_layers, num_stages);
  }
  if (given.size() == 1 && num_stages > 1) {
    return split_by(given.front(), num_layers, num_stages);
  }
  check_list(num_layers, num_stages, given);
  return given;
}

}  // namespace swapline::trainer
