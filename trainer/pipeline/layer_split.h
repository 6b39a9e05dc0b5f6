// Which stage gets how many of the model's layers.
#pragma once

#include <cstdint>
#include <vector>

namespace swapline::trainer {

// Layers per stage, first stage first, each at least 1; they add up to `num_layers`.
//
// `given` empty: as even as possible. What is left over goes, one each, to the stages just before
// the last: the last also runs the head, and the earlier a stage, the more micro-batches it keeps
// in flight.
// `given` one number, of several stages: that many for each, and the last takes the rest.
// `given` a list: one number per stage, taken as it is.
//
// Throws: std::invalid_argument saying what was found, what is allowed and which option to turn.
std::vector<int64_t> split_layers(int64_t num_layers, int num_stages, std::vector<int64_t> given);

}  // namespace swapline::trainer
