// A schedule run on paper: whether it can run at all, how long it takes, what it keeps in flight.
#pragma once

#include "trainer/pipeline/schedule.h"

#include <functional>
#include <vector>

namespace swapline::trainer {

// An action starts when its rank is free and its inputs are there: a forward needs the forward of
// the stage before it, a backward its own forward and the backward of the stage after it, an
// overlapped action the inputs of both.
// Throws: std::logic_error with the place, when a forward or backward is missing, there twice, on
// the wrong rank or before its forward, or when the ranks would wait for each other for ever.
void check(const Schedule& schedule);

// What an action takes, above 0.
using ActionCost = std::function<double(const Action&)>;
// From the first action's start to the last one's end; transfers are free. Throws: as check.
double makespan(const Schedule& schedule, const ActionCost& cost);

struct ScheduleShape {
  double makespan = 0;                  // in the unit of the costs
  std::vector<double> bubble_share;     // per rank: idle time / makespan
  std::vector<int> in_flight_of_stage;  // the most micro-batches at once whose forward has started
                                        // and whose backward has not ended
  std::vector<int> in_flight_of_rank;   // the same over all stages of a rank
};

// Each forward, backward and overlapped action takes its cost (above 0), whatever the stage;
// transfers are free. Throws: as check.
ScheduleShape analyse(const Schedule& schedule,
                      double forward_cost,
                      double backward_cost,
                      double overlapped_cost);

}  // namespace swapline::trainer
