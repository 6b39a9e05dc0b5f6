// The device types that a C++ program has to load before it can use them.
#pragma once

#include "swapline/export.h"

#include <string>

namespace swapline {

// Makes a device type usable in this process, so that c10::Device(type) exists and torch runs
// there. Nothing is done for "cpu", and where the type is there already.
// - "cuda", "xpu": libraries of torch's that no symbol of a program asks for.
// - "npu": torch_npu, which is initialised by Python: an interpreter is started where none runs.
// - "sim": the simulator beside this library. It leaves no place for "npu" in the process.
// The first three are those of the torch that this process runs with. What is loaded stays loaded.
// Must outlive all use of the device: it gives devices back where it has started the interpreter.
class SWAPLINE_API Backend {
 public:
  // Throws: std::runtime_error saying what was looked for, where, and what to do.
  explicit Backend(const std::string& type);
  ~Backend();
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

 private:
  bool started_python_ = false;
};

}  // namespace swapline
