// What the five wrappers and the RFC's classes stand on: SwapGroup, SwapLayerInputs, LayerSwapper.
#include "python/src/layer_input.h"
#include "swapline/layer_input/wrappers.h"
#include "swapline/swap/eligibility.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

namespace swapline::python {
namespace {

using Tensors = std::vector<at::Tensor>;

// The RFC's words.
std::string state_name(Residency residency) {
  switch (residency) {
    case Residency::kDevice:
      return "device";
    case Residency::kSwappingOut:
      return "d2h";
    case Residency::kHost:
      return "host";
    case Residency::kSwappingIn:
      return "h2d";
  }
  return "";
}

// The context has to outlive the group.
struct PySwapGroup {
  std::shared_ptr<SwapContext> context;
  SwapGroup group;

  PySwapGroup(std::shared_ptr<SwapContext> of, const Tensors& tensors, std::string label)
      : context(std::move(of)),
        group(*context, tensors, {.label = std::move(label), .release = Release::kInPlace}) {}
};

void bind_swap_group(py::module_& module) {
  py::class_<PySwapGroup>(module, "SwapGroup", py::release_gil_before_calling_cpp_dtor())
      .def(py::init<std::shared_ptr<SwapContext>, const Tensors&, std::string>(), ReleaseGil())
      .def_property_readonly(
          "state", [](const PySwapGroup& self) { return state_name(self.group.residency()); })
      .def_property_readonly("bytes", [](const PySwapGroup& self) { return self.group.bytes(); })
      .def_property_readonly("has_host_copy",
                             [](const PySwapGroup& self) { return self.group.has_host_copy(); })
      .def(
          "swap_out", [](PySwapGroup& self) { return self.group.swap_out(); }, ReleaseGil())
      .def(
          "release_device_storage",
          [](PySwapGroup& self) { return self.group.release_device_storage(); },
          ReleaseGil())
      .def(
          "recall", [](PySwapGroup& self) { self.group.recall(); }, ReleaseGil())
      .def(
          "swap_in", [](PySwapGroup& self) { self.group.swap_in(); }, ReleaseGil())
      .def(
          "wait_swap_in", [](PySwapGroup& self) { self.group.wait_swap_in(); }, ReleaseGil())
      .def(
          "drop_host_copy", [](PySwapGroup& self) { self.group.drop_host_copy(); }, ReleaseGil())
      .def(
          "host_tensors",
          [](PySwapGroup& self) { return self.group.host_tensors(); },
          ReleaseGil());
  module.def(
      "swap_refusal",
      [](const at::Tensor& tensor) { return is_valid_for_swap(tensor).reason; },
      ReleaseGil());
}

void bind_layer_swapper(py::module_& module) {
  using All = SwapLayerInputs;
  py::class_<All, std::shared_ptr<All>>(
      module, "SwapLayerInputs", py::release_gil_before_calling_cpp_dtor())
      .def(py::init<std::shared_ptr<SwapContext>, LayerInputOptions>(), ReleaseGil())
      .def("begin_microbatch", &All::begin_microbatch, ReleaseGil())
      .def("prefetch", &All::prefetch, ReleaseGil())
      .def("sweep", &All::sweep, ReleaseGil())
      .def("stats", [](const All& self) {
        LayerInputStats stats;
        {
          const py::gil_scoped_release no_gil;
          stats = self.stats();
        }
        return stats_dict(stats);
      });
  py::class_<LayerSwapper>(module, "LayerSwapper", py::release_gil_before_calling_cpp_dtor())
      .def(py::init<std::shared_ptr<All>, int64_t>())
      .def_property_readonly("index", &LayerSwapper::index)
      .def("states",
           [](const LayerSwapper& self) {
             std::vector<Residency> states;
             {
               const py::gil_scoped_release no_gil;
               states = self.states();
             }
             std::vector<std::string> names;
             for (const Residency state : states) {
               names.push_back(state_name(state));
             }
             return names;
           })
      // An alias: what C++ holds keeps a tensor's Python object alive, which then looks like
      // someone else who holds it, and inputs that the framework has let go of would not be
      // noticed. And without its history, which leads to the layer before and so to this object, in
      // a circle that Python's garbage collection does not see.
      .def(
          "begin_forward",
          [](const LayerSwapper& self, const at::Tensor& hidden_states) {
            return self.begin_forward(hidden_states.detach());
          },
          ReleaseGil())
      .def("cancel_forward", &LayerSwapper::cancel_forward, ReleaseGil())
      .def("end_forward", &LayerSwapper::end_forward, ReleaseGil())
      .def("begin_backward", &LayerSwapper::begin_backward, ReleaseGil())
      .def("end_backward", &LayerSwapper::end_backward, ReleaseGil());
}

}  // namespace

void init_layer_input_wrappers(py::module_& module) {
  bind_swap_group(module);
  bind_layer_swapper(module);
}

}  // namespace swapline::python
