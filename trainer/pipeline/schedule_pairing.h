// Which forwards and backwards are run against each other.
#pragma once

#include "trainer/pipeline/schedule.h"

#include <vector>

namespace swapline::trainer {

// What the stages do, in forwards of a layer.
struct StageLoads {
  std::vector<double> layers;  // of each stage
  double head = 0;             // the last stage's own: output matrix and loss, one way
};

// `apart` with those of `paired`'s pairs that do not lengthen it. A pair saves its rank time, but
// what it makes leaves at its end, and other ranks may wait for that: where they do, forward and
// backward stay apart. `paired` is `apart` with a pair for some neighbours F B of a rank.
Schedule pair_where_faster(Schedule apart, const Schedule& paired, const StageLoads& loads);

}  // namespace swapline::trainer
