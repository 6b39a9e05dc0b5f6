// For Python: contexts that leave one wait out, and what uses every wait of the swap core.
#include "swapline/swap/swap_context.h"
#include "tests/support/drop_wait.h"
#include "tests/support/swap_scenario.h"

#include <memory>
#include <optional>
#include <string>

#include <torch/csrc/utils/pybind.h>

namespace {

using swapline::Wait;
using swapline::testing::DropWait;

Wait wait_of(const std::string& name) {
  for (int i = 0; i < swapline::kNumWaits; ++i) {
    if (swapline::wait_name(static_cast<Wait>(i)) == name) {
      return static_cast<Wait>(i);
    }
  }
  throw py::value_error("no wait is named " + name);
}

}  // namespace

PYBIND11_MODULE(swapline_drop_wait, module) {
  py::module_::import("swapline._core");  // knows SwapContextOptions
  std::vector<std::string> names;
  for (int i = 0; i < swapline::kNumWaits; ++i) {
    names.emplace_back(swapline::wait_name(static_cast<Wait>(i)));
  }
  module.attr("NAMES") = names;
  module.def(
      "swap_back_and_forth",
      [](const at::Device& device, const std::shared_ptr<DropWait>& order) {
        swapline::testing::swap_back_and_forth(device, order);
      },
      py::call_guard<py::gil_scoped_release>());
  py::class_<DropWait, std::shared_ptr<DropWait>>(module, "DropWait")
      .def(py::init([](const std::optional<std::string>& name) {
             return std::make_shared<DropWait>(name ? std::optional(wait_of(*name)) : std::nullopt);
           }),
           py::arg("name") = py::none())
      // How often it was asked for that wait.
      .def(
          "count",
          [](const DropWait& order, const std::string& name) { return order.count(wait_of(name)); })
      // For SwapContext(like=...).
      .def("context_options", [](const std::shared_ptr<DropWait>& order) {
        auto options = std::make_shared<swapline::SwapContextOptions>();
        options->order = order;
        return options;
      });
}
