// The simulated machine: its settings, clocks, memory, counters, races and trace. Times are ns.
#include "python/src/bindings.h"
#include "sim/torch/idle.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"
#include "swapline/swap/swap_context.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/Context.h>
#include <pybind11/stl.h>

namespace swapline::python {
namespace {

// The machine's lock, or a thread that lets go of memory, may have to be waited for.
template <typename Function>
auto without_gil(const Function& function) {
  const py::gil_scoped_release release;
  return function();
}

void bind_spec(py::module_& module) {
  using sim::DeviceSpec;
  py::class_<DeviceSpec>(module, "DeviceSpec")
      .def(py::init<>())
      .def(py::init<const DeviceSpec&>())
      .def_readwrite("name", &DeviceSpec::name)
      .def_readwrite("source", &DeviceSpec::source)
      .def_readwrite("memory_bytes", &DeviceSpec::memory_bytes)
      .def_readwrite("memory_bytes_per_s", &DeviceSpec::memory_bytes_per_s)
      .def_readwrite("float16_flops", &DeviceSpec::float16_flops)
      .def_readwrite("float32_flops", &DeviceSpec::float32_flops)
      .def_readwrite("float64_flops", &DeviceSpec::float64_flops)
      .def_readwrite("compute_efficiency", &DeviceSpec::compute_efficiency)
      .def_readwrite("launch_latency", &DeviceSpec::launch_latency)
      .def_readwrite("host_op_time", &DeviceSpec::host_op_time)
      .def_readwrite("h2d_bytes_per_s", &DeviceSpec::h2d_bytes_per_s)
      .def_readwrite("d2h_bytes_per_s", &DeviceSpec::d2h_bytes_per_s)
      .def_readwrite("full_duplex", &DeviceSpec::full_duplex)
      .def_readwrite("copy_latency", &DeviceSpec::copy_latency)
      .def_readwrite("peer_bytes_per_s", &DeviceSpec::peer_bytes_per_s)
      .def_readwrite("peer_latency", &DeviceSpec::peer_latency)
      .def_readwrite("device_allocation_time", &DeviceSpec::device_allocation_time)
      .def_readwrite("pinned_allocation_time", &DeviceSpec::pinned_allocation_time)
      .def_readwrite("pinned_bytes_per_s", &DeviceSpec::pinned_bytes_per_s);
  module.def("presets", &sim::presets);
  module.def("preset", [](const std::string& name) { return sim::preset(name); });
}

void bind_options(py::module_& module) {
  using sim::Faults;
  py::class_<Faults>(module, "Faults")
      .def(py::init<>())
      .def_readwrite("fail_device_allocation", &Faults::fail_device_allocation)
      .def_readwrite("fail_pinned_allocation", &Faults::fail_pinned_allocation)
      .def_readwrite("fail_copy", &Faults::fail_copy)
      .def_readwrite("fail_launch", &Faults::fail_launch)
      .def_readwrite("lose_devices", &Faults::lose_devices)
      .def_readwrite("copy_slowdown", &Faults::copy_slowdown)
      .def_readwrite("copy_jitter", &Faults::copy_jitter)
      .def_readwrite("seed", &Faults::seed);

  using sim::SimulatorOptions;
  py::class_<SimulatorOptions>(module, "SimulatorOptions")
      .def(py::init<>())
      .def(py::init<const SimulatorOptions&>())
      .def_readwrite("spec", &SimulatorOptions::spec)
      .def_readwrite("capacity_bytes", &SimulatorOptions::capacity_bytes)
      .def_readwrite("dry_run", &SimulatorOptions::dry_run)
      .def_readwrite("check_races", &SimulatorOptions::check_races)
      .def_readwrite("late_copies", &SimulatorOptions::late_copies)
      .def_readwrite("trace", &SimulatorOptions::trace)
      .def_readwrite("log", &SimulatorOptions::log)
      .def_readwrite("round_pinned", &SimulatorOptions::round_pinned)
      .def_readwrite("watch_host_ops", &SimulatorOptions::watch_host_ops)
      .def_readwrite("faults", &SimulatorOptions::faults);
  module.def("options", [] { return sim::simulator().options(); });
  module.def("configure", &sim::configure, ReleaseGil());
  module.def(
      "set_faults",
      [](const Faults& faults) { sim::simulator().set_faults(faults); },
      ReleaseGil());
}

constexpr std::array<const char*, sim::kNumMemoryKinds> kKindNames = {
    "other", "parameters", "gradients", "optimizer_states", "layer_inputs"};

py::dict by_kind(const sim::BytesByKind& bytes) {
  py::dict dict;
  for (size_t kind = 0; kind < bytes.size(); ++kind) {
    dict[kKindNames[kind]] = bytes[kind];
  }
  return dict;
}

void set_memory_kind(const at::Tensor& tensor, const std::string& name) {
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), name);
  TORCH_CHECK_VALUE(found != kKindNames.end(), "there is no memory of kind ", name);
  sim::set_memory_kind(tensor.storage(), static_cast<sim::MemoryKind>(found - kKindNames.begin()));
}

py::dict memory_stats(int device) {
  const auto stats = without_gil([&] {
    sim::wait_until_idle(device);
    return sim::simulator().memory_stats(device);
  });
  py::dict dict;
  dict["capacity_bytes"] = stats.capacity_bytes;
  dict["allocated_bytes"] = stats.allocated_bytes;
  dict["peak_allocated_bytes"] = stats.peak_allocated_bytes;
  dict["reserved_bytes"] = stats.reserved_bytes;
  dict["peak_reserved_bytes"] = stats.peak_reserved_bytes;
  dict["held_bytes"] = stats.held_bytes;
  dict["num_allocations"] = stats.num_allocations;
  dict["num_segments_allocated"] = stats.num_segments_allocated;
  dict["num_retries"] = stats.num_retries;
  dict["num_out_of_memory"] = stats.num_out_of_memory;
  dict["bytes_by_kind"] = by_kind(stats.bytes_by_kind);
  dict["peak_bytes_by_kind"] = by_kind(stats.peak_bytes_by_kind);
  return dict;
}

py::dict pinned_stats() {
  const auto stats = without_gil([] {
    sim::wait_until_idle();
    return sim::simulator().pinned_stats();
  });
  py::dict dict;
  dict["allocated_bytes"] = stats.allocated_bytes;
  dict["peak_allocated_bytes"] = stats.peak_allocated_bytes;
  dict["num_allocations"] = stats.num_allocations;
  return dict;
}

py::dict counters(int device) {
  const auto counters = without_gil([&] { return sim::simulator().counters(device); });
  py::dict dict;
  dict["num_ops"] = counters.num_ops;
  dict["num_copies_in"] = counters.num_copies_in;
  dict["num_copies_out"] = counters.num_copies_out;
  dict["bytes_in"] = counters.bytes_in;
  dict["bytes_out"] = counters.bytes_out;
  dict["mapped_bytes_in"] = counters.mapped_bytes_in;
  dict["mapped_bytes_out"] = counters.mapped_bytes_out;
  dict["num_exchanges"] = counters.num_exchanges;
  dict["bytes_exchanged"] = counters.bytes_exchanged;
  dict["num_streams"] = counters.num_streams;
  dict["num_host_waits"] = counters.num_host_waits;
  dict["num_blocking_copies"] = counters.num_blocking_copies;
  return dict;
}

void bind_memory(py::module_& module) {
  module.def("memory_stats", &memory_stats);
  module.def("pinned_stats", &pinned_stats);
  module.def("counters", &counters);
  module.def(
      "reset_peak_memory",
      [](int device) { sim::simulator().reset_peak_memory(device); },
      ReleaseGil());
  module.def(
      "reset_peak_pinned", [] { sim::simulator().reset_peak_pinned(); }, ReleaseGil());
  module.def(
      "empty_cache", [](int device) { sim::simulator().empty_cache(device); }, ReleaseGil());
  module.def(
      "take_away",
      [](int device, size_t bytes) { sim::simulator().take_away(device, bytes); },
      ReleaseGil());
  module.def(
      "live_bytes",
      [] {
        sim::wait_until_idle();
        return sim::simulator().live_bytes();
      },
      ReleaseGil());
  // Options of a SwapContext whose device memory the machine accounts for by kind.
  module.def("context_options", [] {
    auto options = std::make_shared<SwapContextOptions>();
    options->on_device_memory = [](const c10::Storage& storage, MemoryKind kind) {
      sim::set_memory_kind(storage,
                           kind == MemoryKind::kLayerInputs ? sim::MemoryKind::kLayerInputs
                                                            : sim::MemoryKind::kOptimizerStates);
    };
    if (sim::simulator().is_dry_run()) {  // addresses only: this machine's memory is no limit
      options->host.read_limit = [] { return std::optional<HostLimit>(); };
    }
    return options;
  });
  module.def("set_memory_kind", &set_memory_kind, ReleaseGil());
}

void bind_time(py::module_& module) {
  module.def(
      "host_time", [](int device) { return sim::simulator().host_time(device); }, ReleaseGil());
  module.def(
      "stream_time",
      [](int device, sim::StreamId stream) { return sim::simulator().stream_time(device, stream); },
      ReleaseGil());
  module.def(
      "advance_host",
      [](int device, sim::Nanos duration) { sim::simulator().advance_host(device, duration); },
      ReleaseGil());
  module.def(
      "name_stream",
      [](int device, sim::StreamId stream, std::string name) {
        sim::simulator().name_stream(device, stream, std::move(name));
      },
      ReleaseGil());
  module.def(
      "log_lines", [] { return sim::simulator().log_lines(); }, ReleaseGil());
  module.def(
      "clear_log", [] { sim::simulator().clear_log(); }, ReleaseGil());
  module.def(
      "trace_json", [] { return sim::simulator().trace_json(); }, ReleaseGil());
  module.def(
      "clear_trace", [] { sim::simulator().clear_trace(); }, ReleaseGil());
}

void bind_races(py::module_& module) {
  module.def(
      "num_races", [] { return sim::simulator().num_races(); }, ReleaseGil());
  module.def(
      "clear_races", [] { sim::simulator().clear_races(); }, ReleaseGil());
  module.def("races", [] {
    py::list list;
    for (const sim::Race& race : without_gil([] { return sim::simulator().races(); })) {
      list.append(race.describe());
    }
    return list;
  });
}

}  // namespace

void init_machine(py::module_& module) {
  // The types of options that both modules speak about.
  py::module_::import("swapline._core");
  bind_spec(module);
  bind_options(module);
  bind_memory(module);
  bind_time(module);
  bind_races(module);
  module.def("check_loaded_in_time", &sim::check_loaded_in_time, ReleaseGil());
  module.def(
      "wait_until_idle", [](int device) { sim::wait_until_idle(device); }, ReleaseGil());
  module.def(
      "wait_until_idle_for",
      [](double seconds) {
        return sim::wait_until_idle_for(
            std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
      },
      ReleaseGil());
  module.attr("num_devices") = sim::kNumDevices;
  module.def("default_generator",
             [](int device) { return at::globalContext().defaultGenerator(sim::device(device)); });
}

}  // namespace swapline::python
