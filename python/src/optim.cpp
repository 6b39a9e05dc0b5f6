// The optimizers, for swapline.optim, which makes torch.optim.Optimizers of them.
#include "python/src/bindings.h"
#include "swapline/optimizer/adam.h"
#include "swapline/optimizer/fused_adam.h"
#include "swapline/optimizer/muon.h"

#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

namespace swapline::python {
namespace {

// What the engine warns of becomes a Python warning, which may be an error, when the GIL is held
// again.
struct Warnings {
  torch::PyWarningHandler handler;
  int num_exceptions = std::uncaught_exceptions();

  Warnings() = default;
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  ~Warnings() noexcept(false) {
    if (std::uncaught_exceptions() > num_exceptions) {
      handler.set_in_exception();
    }
  }
};

using Waits = py::call_guard<Warnings, py::gil_scoped_release>;

using Contexts = std::vector<std::shared_ptr<SwapContext>>;
using Params = std::vector<at::Tensor>;
using AdamGroups = std::vector<std::pair<Params, AdamSettings>>;
using MuonGroups = std::vector<std::pair<Params, MuonSettings>>;

// The end of an optimizer waits for its copies: not under the GIL.
template <typename T>
std::shared_ptr<T> freed_without_gil(std::unique_ptr<T> optimizer) {
  return std::shared_ptr<T>(optimizer.release(), [](T* pointer) {
    if (PyGILState_Check() != 0) {
      const py::gil_scoped_release no_gil;
      delete pointer;
    } else {
      delete pointer;
    }
  });
}

template <typename Group, typename Settings>
std::vector<Group> groups_of(std::vector<std::pair<Params, Settings>> pairs) {
  std::vector<Group> groups;
  for (auto& [params, settings] : pairs) {
    groups.push_back({std::move(params), std::move(settings)});
  }
  return groups;
}

// A signal that came during the step is handled here, with nothing in flight.
void step(Optimizer& optimizer,
          std::optional<at::Tensor> grad_scale,
          std::optional<at::Tensor> found_inf) {
  {
    const Warnings warnings;
    const py::gil_scoped_release no_gil;
    optimizer.step({grad_scale.value_or(at::Tensor()), found_inf.value_or(at::Tensor())});
  }
  if (PyErr_CheckSignals() != 0) {
    py::error_already_set interrupted;
    {
      const py::gil_scoped_release no_gil;
      optimizer.drain();
    }
    throw interrupted;
  }
}

// An optimizer lists a stand-in for each parameter that is a shard of something larger: a plain
// tensor that is given the shard's memory and gradient for the time of a step.
void set_shards(const Params& stand_ins,
                const Params& shards,
                std::vector<std::optional<at::Tensor>> grads) {
  for (size_t i = 0; i < stand_ins.size(); ++i) {
    stand_ins[i].set_data(shards[i]);
    stand_ins[i].mutable_grad() = std::move(grads[i]).value_or(at::Tensor());
  }
}

// Takes the gradients back. `changed`: tensors whose memory the step has written through a
// stand-in, which autograd is to know.
void release_shards(const Params& stand_ins, const Params& changed) {
  for (const at::Tensor& stand_in : stand_ins) {
    stand_in.mutable_grad().reset();
  }
  for (const at::Tensor& tensor : changed) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

py::dict stats(const Optimizer& optimizer) {
  const OptimizerStats stats = optimizer.stats();
  py::dict dict;
  dict["num_chunks"] = stats.num_chunks;
  dict["num_slots"] = stats.num_slots;
  dict["slot_bytes"] = stats.slot_bytes;
  dict["arena_bytes"] = stats.arena_bytes;
  dict["scratch_bytes"] = stats.scratch_bytes;
  dict["kept_bytes"] = stats.kept_bytes;
  dict["mapped_bytes"] = stats.mapped_bytes;
  dict["state_bytes"] = stats.state_bytes;
  dict["num_copies_in"] = stats.num_copies_in;
  dict["num_copies_out"] = stats.num_copies_out;
  dict["num_launches"] = stats.num_launches;
  dict["num_shortages"] = stats.num_shortages;
  return dict;
}

py::list step_times(Optimizer& optimizer) {
  std::vector<OptimizerStepTimes> all;
  {
    const py::gil_scoped_release no_gil;
    all = optimizer.take_step_times();
  }
  py::list list;
  for (const OptimizerStepTimes& times : all) {
    py::dict dict;
    dict["h2d_ms"] = times.h2d_ms;
    dict["d2h_ms"] = times.d2h_ms;
    dict["update_ms"] = times.update_ms;
    dict["step_ms"] = times.step_ms;
    dict["exposed_ms"] = times.exposed_ms;
    list.append(std::move(dict));
  }
  return list;
}

void bind_settings(py::module_& module) {
  py::class_<AdamSettings>(module, "AdamSettings")
      .def(py::init([](double lr,
                       std::optional<at::Tensor> lr_tensor,
                       double beta1,
                       double beta2,
                       double eps,
                       double weight_decay,
                       bool decoupled,
                       bool amsgrad,
                       bool maximize) {
             return AdamSettings{lr,
                                 lr_tensor.value_or(at::Tensor()),
                                 beta1,
                                 beta2,
                                 eps,
                                 weight_decay,
                                 decoupled,
                                 amsgrad,
                                 maximize};
           }),
           py::kw_only(),
           py::arg("lr"),
           py::arg("lr_tensor"),
           py::arg("beta1"),
           py::arg("beta2"),
           py::arg("eps"),
           py::arg("weight_decay"),
           py::arg("decoupled"),
           py::arg("amsgrad"),
           py::arg("maximize"));
  py::class_<MuonSettings>(module, "MuonSettings")
      .def(py::init([](double lr,
                       double weight_decay,
                       double momentum,
                       bool nesterov,
                       std::array<double, 3> ns_coefficients,
                       double eps,
                       int64_t ns_steps,
                       bool match_rms_adamw,
                       bool hybrid_ns) {
             return MuonSettings{
                 lr,
                 weight_decay,
                 momentum,
                 nesterov,
                 ns_coefficients,
                 eps,
                 ns_steps,
                 match_rms_adamw ? MuonLrRule::kMatchRmsAdamw : MuonLrRule::kOriginal,
                 hybrid_ns};
           }),
           py::kw_only(),
           py::arg("lr"),
           py::arg("weight_decay"),
           py::arg("momentum"),
           py::arg("nesterov"),
           py::arg("ns_coefficients"),
           py::arg("eps"),
           py::arg("ns_steps"),
           py::arg("match_rms_adamw"),
           py::arg("hybrid_ns"));
}

void bind_options(py::module_& module) {
  py::enum_<StatePlacement>(module, "StatePlacement")
      .value("DEVICE", StatePlacement::kDevice)
      .value("SWAP", StatePlacement::kSwap);
  py::enum_<AdamKernel>(module, "AdamKernel")
      .value("AUTO", AdamKernel::kAuto)
      .value("FUSED", AdamKernel::kFused)
      .value("PORTABLE", AdamKernel::kPortable);
  py::class_<AdamOptions>(module, "AdamOptions")
      .def(py::init<>())
      .def_readwrite("placement", &AdamOptions::placement)
      .def_readwrite("swap_optimizer_times", &AdamOptions::swap_optimizer_times)
      .def_readwrite("swap_optimizer_arena_bytes", &AdamOptions::swap_optimizer_arena_bytes)
      .def_readwrite("swap_optimizer_fraction", &AdamOptions::swap_optimizer_fraction)
      .def_readwrite("swap_optimizer_min_bytes", &AdamOptions::swap_optimizer_min_bytes)
      .def_readwrite("virtual_optimizer_bytes", &AdamOptions::virtual_optimizer_bytes)
      .def_readwrite("num_slots", &AdamOptions::num_slots)
      .def_readwrite("link_bytes_per_s", &AdamOptions::link_bytes_per_s)
      .def_readwrite("copy_latency_s", &AdamOptions::copy_latency_s)
      .def_readwrite("state_dtype", &AdamOptions::state_dtype)
      .def_readwrite("master_weights", &AdamOptions::master_weights)
      .def_readwrite("kernel", &AdamOptions::kernel);
  py::class_<detail::FusedAdamSupport>(module, "FusedAdamSupport")
      .def(py::init<c10::Device, bool>(), py::arg("device"), py::arg("decoupled"))
      .def("runs", &detail::FusedAdamSupport::runs, ReleaseGil())
      .def("takes_tensor_lr", &detail::FusedAdamSupport::takes_tensor_lr, ReleaseGil())
      .def("scales", &detail::FusedAdamSupport::scales, ReleaseGil());
}

void bind_optimizers(py::module_& module) {
  py::class_<Optimizer, std::shared_ptr<Optimizer>>(module, "Optimizer")
      .def("step", &step, py::arg("grad_scale"), py::arg("found_inf"))
      .def("prefetch", &Optimizer::prefetch, Waits())
      .def("drain", &Optimizer::drain, Waits())
      .def("heeds_scaling", &Optimizer::heeds_scaling, Waits())
      .def("state", &Optimizer::state, Waits())
      .def("make_state", &Optimizer::make_state, Waits())
      .def("clear_state", &Optimizer::clear_state, Waits())
      .def("state_names", &Optimizer::state_names)
      .def("stats", &stats)
      .def("device_state_bytes", &Optimizer::device_state_bytes, Waits())
      .def("take_step_times", &step_times);

  py::class_<Adam, Optimizer, std::shared_ptr<Adam>>(module, "Adam")
      .def(py::init([](Contexts contexts, AdamGroups groups, const AdamOptions& options) {
             return freed_without_gil(std::make_unique<Adam>(
                 std::move(contexts), groups_of<AdamGroup>(std::move(groups)), options));
           }),
           Waits())
      .def(
          "add_group",
          [](Adam& adam, Params params, AdamSettings settings) {
            adam.add_group({std::move(params), std::move(settings)});
          },
          Waits())
      .def("set_group", [](Adam& adam, size_t group, AdamSettings settings) {
        adam.settings(group) = std::move(settings);
      });

  py::class_<Muon, Optimizer, std::shared_ptr<Muon>>(module, "Muon")
      .def(py::init([](Contexts contexts,
                       MuonGroups matrices,
                       AdamGroups others,
                       const AdamOptions& options) {
             return freed_without_gil(
                 std::make_unique<Muon>(std::move(contexts),
                                        groups_of<MuonGroup>(std::move(matrices)),
                                        groups_of<AdamGroup>(std::move(others)),
                                        options));
           }),
           Waits())
      .def(
          "add_group",
          [](Muon& muon, Params params, MuonSettings settings) {
            muon.add_group(MuonGroup{std::move(params), settings});
          },
          Waits())
      .def(
          "add_group",
          [](Muon& muon, Params params, AdamSettings settings) {
            muon.add_group(AdamGroup{std::move(params), std::move(settings)});
          },
          Waits())
      .def("set_group",
           [](Muon& muon, size_t group, const MuonSettings& settings) {
             muon.settings(group) = settings;
           })
      .def("set_group", [](Muon& muon, size_t group, AdamSettings settings) {
        muon.adam_settings(group) = std::move(settings);
      });
}

}  // namespace

void init_optim(py::module_& module) {
  bind_settings(module);
  bind_options(module);
  bind_optimizers(module);
  module.def("set_shards", &set_shards);
  module.def("release_shards", &release_shards);
}

}  // namespace swapline::python
