// Names of checkpoints, and the order of what is done to the folder.
#include "swapline/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

namespace swapline {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStep = "step-";
// With a dot: whoever looks for step-N does not take these for one.
constexpr std::string_view kUnfinished = ".unfinished-step-";
constexpr std::string_view kDeleted = ".deleted-step-";

std::string name_of(std::string_view prefix, int64_t step) {
  return std::string(prefix) + std::to_string(step);
}

// The number behind the prefix, if the name is just that.
std::optional<int64_t> step_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  int64_t step = 0;
  const char* const end = name.data() + name.size();
  const auto [stopped, error] = std::from_chars(name.data() + prefix.size(), end, step);
  const bool is_step = error == std::errc() && stopped == end && name_of(prefix, step) == name;
  return is_step && step >= 0 ? std::optional(step) : std::nullopt;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  const bool is_there = error != std::errc::no_such_file_or_directory;
  TORCH_CHECK(!error || !is_there, folder, ": cannot be read: ", error.message());
  return names;
}

}  // namespace

CheckpointStore::CheckpointStore(std::string folder, CheckpointStoreOptions options)
    : folder_(std::move(folder)), options_(std::move(options)) {
  TORCH_CHECK(options_.keep_latest_k >= 0,
              "keep_latest_k: found ",
              options_.keep_latest_k,
              ", allowed is 0, for all, or more");
  if (options_.ops == nullptr) {
    options_.ops = system_file_ops();
  }
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder_)) {
    if (const auto step = step_of(name, kStep)) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string CheckpointStore::path(int64_t step) const {
  return folder_ + "/" + name_of(kStep, step);
}

void CheckpointStore::save(int64_t step, const CheckpointContent& content) const {
  FileOps& ops = *options_.ops;
  ops.make_folder(folder_);
  remove_leftovers();
  const std::string unfinished = folder_ + "/" + name_of(kUnfinished, step);
  const std::string finished = path(step);
  const bool replaces = fs::exists(finished);
  try {
    ops.make_folder(unfinished);
    write(unfinished, content);
    ops.sync_folder(unfinished);
    if (replaces) {
      ops.exchange(unfinished, finished);
    } else {
      ops.rename(unfinished, finished);
    }
  } catch (...) {
    try {
      ops.remove(unfinished);  // a full disk must not stay full
    } catch (const c10::Error&) {
      // It is a leftover then; the first error says more.
    }
    throw;
  }
  ops.sync_folder(folder_);
  if (replaces) {
    ops.remove(unfinished);
  }
  remove_old_ones(step);
}

void CheckpointStore::write(const std::string& folder, const CheckpointContent& content) const {
  write_tensors(*options_.ops, folder, content.tensors, options_.file_bytes);
  for (const auto& [name, scalars] : content.scalars) {
    write_scalars(*options_.ops, folder + "/" + name, scalars);
  }
}

void CheckpointStore::remove_leftovers() const {
  for (const std::string& name : names_in(folder_)) {
    if (step_of(name, kUnfinished) || step_of(name, kDeleted)) {
      options_.ops->remove(folder_ + "/" + name);
    }
  }
}

void CheckpointStore::remove_old_ones(int64_t newest) const {
  if (options_.keep_latest_k == 0) {
    return;
  }
  std::vector<int64_t> others = steps();
  std::erase(others, newest);
  const auto num_kept = static_cast<size_t>(options_.keep_latest_k - 1);
  for (size_t i = 0; i + num_kept < others.size(); ++i) {
    // Removing a folder takes many steps: first it stops being a checkpoint.
    const std::string deleted = folder_ + "/" + name_of(kDeleted, others[i]);
    options_.ops->rename(path(others[i]), deleted);
    options_.ops->remove(deleted);
  }
}

}  // namespace swapline
