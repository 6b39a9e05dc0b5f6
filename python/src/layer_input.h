// What the two files of layer inputs share.
#pragma once

#include "python/src/bindings.h"
#include "swapline/layer_input/layer_inputs.h"

namespace swapline::python {

py::dict stats_dict(const LayerInputStats& stats);

}  // namespace swapline::python
