// Numbers for a device that is none: an operator with a kernel of the backend's runs torch's CPU
// kernel instead, on stand-ins that share the "device" memory, when its stream gets there. Shapes
// of fresh results come from Meta kernels, so that nothing runs before its turn; an operator whose
// shapes Meta cannot tell runs at once, behind its stream.
#pragma once

#include "harness/machine/control.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace swapline::harness {

// What differs between backends. One of a process.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual c10::DeviceType type() const = 0;
  // `run` happens when the device's current stream gets there, as this backend's own kernels do.
  virtual void enqueue(c10::Device device,
                       const std::string& name,
                       const std::vector<HarnessTouchedBytes>& touched,
                       std::function<void()> run) const = 0;
  // Everything enqueued on the device's current stream has run.
  virtual void finish(c10::Device device) const = 0;
  // A seed for one operator, from the generator that it was given or the device's; moves it on.
  virtual uint64_t draw(const std::optional<at::Generator>& given, c10::Device device) const = 0;
  // The backend's kernel of `op` does not look at this argument.
  virtual bool ignores(std::string_view op, std::string_view argument) const { return false; }
};

// harness_launch of a function. Not 0: it was told to fail.
int launch(void* stream,
           const std::string& name,
           const std::vector<HarnessTouchedBytes>& touched,
           std::function<void()> run);

void set_backend(const Backend& backend);
bool is_on_backend(const at::Tensor& tensor);

// The boxed kernel described above.
void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// A copy on one device that is more than its bytes: another dtype, layout or shape.
bool needs_kernel(const at::Tensor& to, const at::Tensor& from);
void copy_by_kernel(const at::Tensor& to, const at::Tensor& from);

}  // namespace swapline::harness
