// SwapContext, its options and its figures.
#include "python/src/bindings.h"
#include "swapline/swap/swap_context.h"

#include <memory>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::python {
namespace {

// As torch reads it: a name is a device, and one without an index is the current one.
c10::Device to_device(const py::object& given) {
  auto device = py::module_::import("torch").attr("device")(given).cast<c10::Device>();
  if (!device.has_index() && !device.is_cpu() && !device.is_meta()) {
    device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  }
  return device;
}

std::shared_ptr<SwapContext> make_context(const py::object& given,
                                          size_t max_host_bytes,
                                          size_t slab_bytes,
                                          bool timing,
                                          const SwapContextOptions* like) {
  const c10::Device device = to_device(given);
  SwapContextOptions options = like ? *like : SwapContextOptions();
  options.host.max_bytes = max_host_bytes;
  options.host.budget_option = "SwapContext(max_host_bytes=...)";
  options.host.slab_bytes = slab_bytes;
  options.timing = timing;
  const py::gil_scoped_release release;
  return std::make_shared<SwapContext>(device, std::move(options));
}

py::dict host_stats(SwapContext& context) {
  const HostPoolStats stats = context.host().stats();
  py::dict dict;
  dict["requested_bytes"] = stats.requested_bytes;
  dict["peak_requested_bytes"] = stats.peak_requested_bytes;
  dict["pinned_bytes"] = stats.pinned_bytes;
  dict["peak_pinned_bytes"] = stats.peak_pinned_bytes;
  dict["num_slabs"] = stats.num_slabs;
  dict["num_pinned_allocations"] = stats.num_pinned_allocations;
  dict["num_failures"] = stats.num_failures;
  return dict;
}

}  // namespace

void init_context(py::module_& module) {
  // Opaque: made by swapline.sim, for SwapContext(like=...).
  py::class_<SwapContextOptions, std::shared_ptr<SwapContextOptions>>(module, "SwapContextOptions")
      .def(py::init<>());

  py::class_<SwapContext, std::shared_ptr<SwapContext>>(module, "SwapContext")
      .def(py::init(&make_context),
           py::arg("device"),
           py::kw_only(),
           py::arg("max_host_bytes") = size_t{0},
           py::arg("slab_bytes") = size_t{64} << 20,
           py::arg("timing") = false,
           py::arg("like") = nullptr)
      .def_property_readonly("device", &SwapContext::device)
      .def("settle_done", &SwapContext::settle_done, ReleaseGil())
      .def("settle_all", &SwapContext::settle_all, ReleaseGil())
      .def(
          "trim", [](SwapContext& context) { context.host().trim(); }, ReleaseGil())
      .def_property_readonly("num_host_failures", &SwapContext::num_host_failures)
      .def_property_readonly("pending_release_bytes", &SwapContext::pending_release_bytes)
      .def("host_stats", &host_stats);
}

}  // namespace swapline::python
