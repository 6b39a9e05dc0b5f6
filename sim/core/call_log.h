// What was asked of a machine, in order, a line each: a word and the rest. Not thread-safe.
//
// - copy s5 pinned->device 80640 B 0x7f10 -> 0x7f50; op s0 aten::mm; fill s0 512 B 0x7f50
// - record s5 e3; wait s0 e3 of s5
// - malloc, free, pin, unpin: the vendor's memory, not what a cache hands out
// - HOSTWAIT: the host waits for a stream, an event, a device
// - BLOCKS: the host waits where nobody asked it to: pageable memory, freeing
// - STAGED: a copy out of pageable memory, which the runtime reads before it returns
// - KERNEL: a kernel of the vendor's that was launched and computes nothing
// - REFUSED: memory that is not to be had
// - WRONG: what real hardware would not forgive: another device's memory, no memory at all
// - RACE: two accesses that nothing orders
// - WARNING: what is allowed and most likely not meant
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace swapline::sim {

class CallLog {
 public:
  // Lines also go to `path`, as they are made. nullptr: nowhere.
  explicit CallLog(const char* path);

  void say(std::string_view word, const std::string& rest);
  // Counted under its word, without a line: what happens all the time.
  void count(std::string_view word) { ++counts_[std::string(word)]; }

  int64_t count_of(const std::string& word) const;
  const std::vector<std::string>& lines() const { return lines_; }
  void clear();

 private:
  std::vector<std::string> lines_;
  std::unordered_map<std::string, int64_t> counts_;
  std::FILE* file_ = nullptr;
};

}  // namespace swapline::sim
