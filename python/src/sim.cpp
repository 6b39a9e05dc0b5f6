// The module swapline._sim. Loading it loads libswapline_sim, which registers the device "sim".
#include "python/src/bindings.h"

PYBIND11_MODULE(_sim, module) {
  module.doc() = "Bindings of libswapline_sim. Use swapline.sim.";
  swapline::python::init_errors(module);
  swapline::python::init_machine(module);
  swapline::python::init_process_group(module);
}
