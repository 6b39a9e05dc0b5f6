// From the tensors of a run to what is written, and from what is read to the tensors.
#pragma once

#include "swapline/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint_tensors.h"

#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace swapline::trainer {

// Parameters and buffers under their names. Those on a device are copied to the host; the host
// waits for it. Those on the host are not copied: they must not change until they are written.
// `dtype`: what parameters are converted to; none: as they are.
std::vector<NamedTensor> model_content(const std::vector<SavedTensor>& tensors,
                                       std::optional<at::ScalarType> dtype);

// The states of all parameters that have some, as optimizer.state.NAME.STATE. Swapped states are
// the optimizer's own host tensors: they must not change, so no step must be taken, until they are
// written. Drains the optimizers.
std::vector<NamedTensor> optimizer_content(const std::vector<SavedTensor>& tensors);

// Reads a checkpoint into the tensors, in place: host memory from the file, the device's by a copy.
// No device memory is used. Everything that is asked for is checked first, and what a checkpoint
// has beyond it is an error. `with_optimizer`: the states too; a parameter without states in the
// checkpoint has none afterwards either.
// Throws: c10::Error, naming file and tensor; no tensor has changed then.
void load_content(const std::string& path,
                  const std::vector<SavedTensor>& tensors,
                  bool with_optimizer);

}  // namespace swapline::trainer
