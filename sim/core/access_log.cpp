#include "sim/core/access_log.h"

#include <algorithm>

namespace swapline::sim {

void AccessLog::note(const Who& who, const Access& access, std::vector<Conflict>& conflicts) {
  if (access.begin >= access.end) {
    return;
  }
  const Entry entry{who.actor, intern(who.op), who.tick};
  auto range = ranges_.upper_bound(access.begin);
  if (range != ranges_.begin() && std::prev(range)->second.end > access.begin) {
    range = split(std::prev(range), access.begin);
  }
  uintptr_t at = access.begin;
  const auto first = [&] { return ranges_.find(access.begin); };
  while (at < access.end) {
    if (range == ranges_.end() || range->first > at) {
      const uintptr_t end =
          range == ranges_.end() ? access.end : std::min(access.end, range->first);
      range = ranges_.emplace_hint(range, at, Range{end, {}, {}});
    } else if (range->second.end > access.end) {
      split(range, access.end);
    }
    check(who, access, at, range->second, conflicts);
    if (access.is_write) {
      range->second.write = entry;
      range->second.reads.clear();
    } else {
      // A read ordered before this one adds nothing: whoever is ordered after this is after both.
      std::erase_if(range->second.reads,
                    [&](const Entry& read) { return who.clock->at(read.actor) >= read.tick; });
      range->second.reads.push_back(entry);
    }
    at = range->second.end;
    ++range;
  }
  if (access.is_write) {
    auto joined = first();
    auto after = std::next(joined);
    while (after != ranges_.end() && after->first < access.end) {
      after = ranges_.erase(after);
    }
    joined->second.end = access.end;
  }
}

void AccessLog::forget(uintptr_t begin, uintptr_t end) {
  auto range = ranges_.upper_bound(begin);
  if (range != ranges_.begin() && std::prev(range)->second.end > begin) {
    range = split(std::prev(range), begin);
  }
  while (range != ranges_.end() && range->first < end) {
    if (range->second.end > end) {
      split(range, end);
    }
    range = ranges_.erase(range);
  }
}

// Cuts the range in two at `at`, which lies inside it or at its begin; returns the part from `at`.
AccessLog::Ranges::iterator AccessLog::split(Ranges::iterator range, uintptr_t at) {
  if (range->first == at) {
    return range;
  }
  Range upper = range->second;
  range->second.end = at;
  return ranges_.emplace_hint(std::next(range), at, std::move(upper));
}

void AccessLog::check(const Who& who,
                      const Access& access,
                      uintptr_t begin,
                      const Range& range,
                      std::vector<Conflict>& conflicts) const {
  const auto is_unordered = [&](const Entry& entry) {
    return entry.tick != 0 && who.clock->at(entry.actor) < entry.tick;
  };
  const auto add = [&](const Entry& entry, bool is_write) {
    conflicts.push_back({ops_[entry.op], entry.actor, is_write, begin, range.end});
  };
  if (is_unordered(range.write)) {
    add(range.write, true);
  }
  if (access.is_write) {
    for (const Entry& read : range.reads) {
      if (is_unordered(read)) {
        add(read, false);
      }
    }
  }
}

uint32_t AccessLog::intern(std::string_view op) {
  if (!ops_.empty() && op == last_op_) {
    return last_op_id_;
  }
  last_op_ = op;
  const auto [found, is_new] = op_ids_.try_emplace(last_op_, static_cast<uint32_t>(ops_.size()));
  if (is_new) {
    ops_.push_back(last_op_);
  }
  last_op_id_ = found->second;
  return last_op_id_;
}

}  // namespace swapline::sim
