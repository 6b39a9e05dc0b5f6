// C++ errors as Python's.
#include "python/src/bindings.h"
#include "swapline/memory/host_pool.h"

#include <exception>

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

namespace swapline::python {
namespace {

void raise(PyObject* type, const char* what) {
  PyErr_SetString(type, what);
}

PyObject* host_memory_error() {
  // Held by its module as long as the process has one.
  return py::module_::import("swapline.errors").attr("HostMemoryError").ptr();
}

}  // namespace

void init_errors(py::module_& /*module*/) {
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(std::move(error));
    } catch (const HostMemoryError& host) {
      raise(host_memory_error(), host.what());
    } catch (python_error& warning) {  // that the user has made an error
      warning.restore();
    } catch (const c10::OutOfMemoryError& device) {
      raise(py::module_::import("torch").attr("OutOfMemoryError").ptr(),
            device.what_without_backtrace());
    } catch (const c10::NotImplementedError& missing) {
      raise(PyExc_NotImplementedError, missing.what_without_backtrace());
    } catch (const c10::TypeError& type) {
      raise(PyExc_TypeError, type.what_without_backtrace());
    } catch (const c10::ValueError& value) {
      raise(PyExc_ValueError, value.what_without_backtrace());
    } catch (const c10::IndexError& index) {
      raise(PyExc_IndexError, index.what_without_backtrace());
    } catch (const c10::Error& other) {
      raise(PyExc_RuntimeError, other.what_without_backtrace());
    }
  });
}

}  // namespace swapline::python
