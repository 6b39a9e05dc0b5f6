// LayerInputs and SavedInput, and what saved-tensor hooks ask of autograd.
#include "python/src/layer_input.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/SavedTensorHooks.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/graph_task.h>

namespace swapline::python {
namespace {

using Tensors = std::vector<at::Tensor>;

// Held by autograd nodes, which die on any thread.
std::shared_ptr<py::object> held(py::object object) {
  return {new py::object(std::move(object)), [](py::object* pointer) {
            if (Py_IsInitialized() == 0) {
              return;  // The interpreter is gone, and with it the object.
            }
            const py::gil_scoped_acquire gil;
            delete pointer;
          }};
}

// An error in `function` leaves as torch's own carrier of Python errors, which autograd's threads
// hand on as they are.
LayerInputs::Layer layer_of(py::object function) {
  return [function = held(std::move(function))](const at::Tensor& hidden_states,
                                                const Tensors& others) -> Tensors {
    const py::gil_scoped_acquire gil;
    try {
      return (*function)(hidden_states, others).cast<Tensors>();
    } catch (py::error_already_set& error) {
      error.restore();
    }
    python_error carrier;
    carrier.persist();
    throw std::move(carrier);
  };
}

// Of one model. The user's check is asked before the engine is: never under its lock, where waiting
// for the GIL could be waiting for a thread that waits for the lock.
struct PyLayerInputs {
  std::shared_ptr<std::atomic<bool>> may_swap = std::make_shared<std::atomic<bool>>(true);
  py::object custom_check;
  LayerInputs inputs;

  PyLayerInputs(std::shared_ptr<SwapContext> context, LayerInputOptions options, py::object check)
      : custom_check(std::move(check)),
        inputs(std::move(context), with_check(std::move(options), may_swap)) {}

  static LayerInputOptions with_check(LayerInputOptions options,
                                      std::shared_ptr<std::atomic<bool>> may_swap) {
    options.custom_check = [may_swap = std::move(may_swap)](const at::Tensor&) {
      return may_swap->load();
    };
    return options;
  }

  void check(const at::Tensor& hidden_states) const {
    *may_swap = custom_check.is_none() || custom_check(hidden_states).cast<bool>();
  }
};

// One that goes out of scope is over: what is on the device goes in stream order.
struct PySavedInput {
  SavedInput saved;

  explicit PySavedInput(SavedInput saved) : saved(std::move(saved)) {}
  PySavedInput(const PySavedInput&) = delete;
  PySavedInput& operator=(const PySavedInput&) = delete;
  ~PySavedInput() {
    try {
      saved.finish();
    } catch (...) {  // A destructor cannot tell; the context frees the memory later.
    }
  }
};

std::unique_ptr<PySavedInput> save(PyLayerInputs& self,
                                   const at::Tensor& hidden_states,
                                   const PySavedInput* before) {
  self.check(hidden_states);
  const py::gil_scoped_release no_gil;
  return std::make_unique<PySavedInput>(
      self.inputs.save(hidden_states, before != nullptr ? &before->saved : nullptr));
}

std::unique_ptr<PySavedInput> save_for_recompute(PyLayerInputs& self,
                                                 const at::Tensor& hidden_states,
                                                 bool begins_pass) {
  self.check(hidden_states);
  const py::gil_scoped_release no_gil;
  return std::make_unique<PySavedInput>(self.inputs.save_for_recompute(hidden_states, begins_pass));
}

Tensors recompute(PyLayerInputs& self,
                  py::object function,
                  const at::Tensor& hidden_states,
                  Tensors others) {
  self.check(hidden_states);
  LayerInputs::Layer layer = layer_of(std::move(function));
  const py::gil_scoped_release no_gil;
  return self.inputs.recompute(std::move(layer), hidden_states, std::move(others));
}

void bind_layer_inputs(py::module_& module) {
  py::class_<LayerInputOptions>(module, "LayerInputOptions")
      .def(py::init<>())
      .def_readwrite("enabled", &LayerInputOptions::enabled)
      .def_readwrite("preserve_rng_state", &LayerInputOptions::preserve_rng_state)
      .def_readwrite("module_tag", &LayerInputOptions::module_tag)
      .def_readwrite("num_layers", &LayerInputOptions::num_layers)
      .def_readwrite("keep_last", &LayerInputOptions::keep_last)
      .def_readwrite("prefetch", &LayerInputOptions::prefetch)
      .def_readwrite("prefetch_bytes", &LayerInputOptions::prefetch_bytes)
      .def_readwrite("max_swapping_out", &LayerInputOptions::max_swapping_out)
      .def_readwrite("min_bytes", &LayerInputOptions::min_bytes)
      .def_readwrite("max_host_bytes", &LayerInputOptions::max_host_bytes);
  module.attr("AUTO") = kAuto;

  py::class_<PySavedInput>(module, "SavedInput", py::release_gil_before_calling_cpp_dtor())
      .def("__bool__", [](const PySavedInput& self) { return static_cast<bool>(self.saved); })
      .def(
          "layer_done", [](PySavedInput& self) { self.saved.layer_done(); }, ReleaseGil())
      .def(
          "take", [](PySavedInput& self) { return self.saved.take(); }, ReleaseGil())
      .def(
          "recomputed",
          [](PySavedInput& self, const Tensors& outputs) { self.saved.recomputed(outputs); },
          ReleaseGil())
      .def(
          "put_back", [](PySavedInput& self) { self.saved.put_back(); }, ReleaseGil())
      .def(
          "finish", [](PySavedInput& self) { self.saved.finish(); }, ReleaseGil());

  // Its Python object dies under the GIL, which the engine behind it never waits for.
  py::class_<PyLayerInputs, std::shared_ptr<PyLayerInputs>>(module, "LayerInputs")
      .def(py::init<std::shared_ptr<SwapContext>, LayerInputOptions, py::object>(),
           py::arg("context"),
           py::arg("options"),
           py::arg("custom_check"))
      .def("recompute", &recompute)
      .def("save", &save, py::arg("hidden_states"), py::arg("before") = nullptr)
      .def("save_for_recompute", &save_for_recompute)
      .def(
          "begin_microbatch",
          [](PyLayerInputs& self, int64_t id) { self.inputs.begin_microbatch(id); },
          ReleaseGil())
      .def(
          "prefetch",
          [](PyLayerInputs& self, int64_t id) { self.inputs.prefetch(id); },
          ReleaseGil())
      .def(
          "recompute_ahead",
          [](PyLayerInputs& self, int64_t id) { self.inputs.recompute_ahead(id); },
          ReleaseGil())
      .def_property_readonly("context",
                             [](const PyLayerInputs& self) { return self.inputs.context(); })
      .def("stats",
           [](const PyLayerInputs& self) {
             LayerInputStats stats;
             {
               const py::gil_scoped_release no_gil;
               stats = self.inputs.stats();
             }
             return stats_dict(stats);
           })
      .def(
          "reset_stats", [](PyLayerInputs& self) { self.inputs.reset_stats(); }, ReleaseGil());
}

// Who saves tensors now: the pack hook that is in force, or None.
py::object top_pack_hook() {
  const auto hooks = at::SavedTensorDefaultHooks::get_hooks();
  return hooks ? py::reinterpret_borrow<py::object>(hooks->first.ptr(getPyInterpreter()))
               : py::none();
}

void bind_autograd(py::module_& module) {
  module.def("top_pack_hook", &top_pack_hook);
  module.def("is_in_backward", [] { return torch::autograd::get_current_graph_task_id() != -1; });
  module.def("keeps_graph", [] {
    return torch::autograd::get_current_graph_task_id() != -1 &&
           torch::autograd::get_current_graph_task_keep_graph();
  });
  // Equal for tensors of one storage, and for no others that live. 0: without one.
  module.def("storage_id", [](const at::Tensor& tensor) {
    return tensor.has_storage()
               ? reinterpret_cast<uintptr_t>(tensor.storage().unsafeGetStorageImpl())
               : 0;
  });
}

}  // namespace

py::dict stats_dict(const LayerInputStats& stats) {
  py::dict dict;
  dict["num_swapped_out"] = stats.num_swapped_out;
  dict["num_swapped_in"] = stats.num_swapped_in;
  dict["bytes_out"] = stats.bytes_out;
  dict["bytes_in"] = stats.bytes_in;
  dict["num_prefetch_hits"] = stats.num_prefetch_hits;
  dict["num_prefetch_misses"] = stats.num_prefetch_misses;
  dict["num_failed_prefetches"] = stats.num_failed_prefetches;
  dict["num_recalls"] = stats.num_recalls;
  dict["num_kept_on_device"] = stats.num_kept_on_device;
  dict["num_refused"] = stats.num_refused;
  dict["num_host_failures"] = stats.num_host_failures;
  dict["bytes_not_freed"] = stats.bytes_not_freed;
  dict["resident_inputs"] = stats.resident_inputs;
  dict["peak_resident_inputs"] = stats.peak_resident_inputs;
  dict["exposed_out_ms"] = stats.exposed_out_ms;
  dict["exposed_in_ms"] = stats.exposed_in_ms;
  return dict;
}

void init_layer_input(py::module_& module) {
  bind_layer_inputs(module);
  bind_autograd(module);
}

}  // namespace swapline::python
