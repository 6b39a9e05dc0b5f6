// The parts of the two Python modules, one file each.
//
// Whatever may wait for a device, for a lock or for another thread is bound with ReleaseGil: other
// Python threads (a DataLoader's, autograd's) go on meanwhile.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace swapline::python {

namespace py = pybind11;
using ReleaseGil = py::call_guard<py::gil_scoped_release>;

// Gives a module's C++ errors the types of Python, torch and swapline.errors, without C++
// backtraces.
void init_errors(py::module_& module);

// Of _core.
void init_context(py::module_& module);
void init_layer_input(py::module_& module);
void init_layer_input_wrappers(py::module_& module);
void init_optim(py::module_& module);

// Of _sim.
void init_machine(py::module_& module);
void init_process_group(py::module_& module);

}  // namespace swapline::python
