// Which stage gets how many of the model's layers.
#pragma once

#include <cstdint>
#include <vector>

namespace swapline::trainer {

// Layers per stage, first stage first; they add up to `num_layers`. Each at least 1, but the first,
// which has the embedding, and the last, which has the head, may do without.
//
// `given` empty: as even as possible. What is left over goes, one each, to the stages just before
// the last: the last also runs the head, and the earlier a stage, the more micro-batches it keeps
// in flight. With fewer layers than stages, the last stage and then the first have none.
// `given` one number, of several stages: that many for each, and the last takes the rest.
// `given` a list: one number per stage, taken as it is.
//
// Throws: std::invalid_argument saying what was found, what is allowed and which option to turn.
std::vector<int64_t> split_layers(int64_t num_layers, int num_stages, std::vector<int64_t> given);

}  // namespace swapline::trainer
