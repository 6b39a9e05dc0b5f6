// What a check and a run of a schedule share: a time per pass, and the faults that need no clock.
#pragma once

#include "trainer/pipeline/schedule.h"

#include <cstddef>
#include <string>
#include <vector>

namespace swapline::trainer {

// When each pass of one direction ended.
class PassTimes {
 public:
  explicit PassTimes(const Schedule& schedule)
      : num_microbatches_(static_cast<std::size_t>(schedule.num_microbatches)),
        ends_(static_cast<std::size_t>(schedule.num_stages) * num_microbatches_, kNotEnded) {}

  bool has(Pass pass) const { return at(pass) != kNotEnded; }
  double at(Pass pass) const { return ends_[index_of(pass)]; }
  void set(Pass pass, double end) { ends_[index_of(pass)] = end; }

 private:
  static constexpr double kNotEnded = -1;

  std::size_t index_of(Pass pass) const {
    return static_cast<std::size_t>(pass.stage) * num_microbatches_ +
           static_cast<std::size_t>(pass.microbatch);
  }

  std::size_t num_microbatches_;
  std::vector<double> ends_;
};

// "rank 1, action 3 (B2.1)"
std::string place_of(std::size_t rank, std::size_t index, const Action& action);
[[noreturn]] void fail(const Schedule& schedule, const std::string& what);

// Everything but the waiting: each pass once, where its stage is, backwards after their forwards.
// Throws: std::logic_error.
void check_passes(const Schedule& schedule);

}  // namespace swapline::trainer
