#include "sim/core/call_log.h"

namespace swapline::sim {

CallLog::CallLog(const char* path) {
  if (path != nullptr) {
    file_ = std::fopen(path, "w");
  }
}

void CallLog::say(std::string_view word, const std::string& rest) {
  count(word);
  lines_.push_back(std::string(word) + ' ' + rest);
  if (file_ != nullptr) {
    std::fprintf(file_, "%s\n", lines_.back().c_str());
    std::fflush(file_);
  }
}

int64_t CallLog::count_of(const std::string& word) const {
  const auto found = counts_.find(word);
  return found == counts_.end() ? 0 : found->second;
}

void CallLog::clear() {
  lines_.clear();
  counts_.clear();
}

}  // namespace swapline::sim
