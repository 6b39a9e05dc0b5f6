// The module swapline._core: a thin face of libswapline.
#include "python/src/bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "Bindings of libswapline. Use the package's own modules.";
  swapline::python::init_errors(module);
  swapline::python::init_context(module);
  swapline::python::init_layer_input(module);
  swapline::python::init_layer_input_wrappers(module);
  swapline::python::init_optim(module);
}
