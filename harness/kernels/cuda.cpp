// The operators of the CUDA backend. Loaded behind libtorch_cuda; what only looks at a tensor, and
// what moves bytes, stays torch's own.
#include "harness/kernels/device_kernels.h"

#include <set>

#include <ATen/Context.h>
#include <ATen/NativeFunctions.h>
#include <ATen/ops/_fused_rms_norm_compositeimplicitautograd_dispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

namespace swapline::harness {
namespace {

class CudaBackend final : public Backend {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }

  void enqueue(c10::Device device,
               const std::string& name,
               const std::vector<HarnessTouchedBytes>& touched,
               std::function<void()> run) const override {
    TORCH_CHECK(launch(stream_of(device), name, touched, std::move(run)) == 0,
                "CUDA error: the launch of ",
                name,
                " failed (fake CUDA)");
  }

  void finish(c10::Device device) const override { harness_finish(stream_of(device)); }

  uint64_t draw(const std::optional<at::Generator>& given, c10::Device device) const override {
    at::Generator generator = given ? *given : at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    const uint64_t seed = generator.current_seed() * 1000003 + generator.get_offset();
    generator.set_offset(generator.get_offset() + 4);  // CUDA's offsets are multiples of four
    return seed;
  }

 private:
  static void* stream_of(c10::Device device) {
    const c10::impl::VirtualGuardImpl devices(c10::kCUDA);
    return devices.getStreamNativeHandle(devices.getStream(device));
  }
};

bool stays_torchs(const std::string& name) {
  static const std::set<std::string> kNames = {"aten::empty",
                                               "aten::empty_strided",
                                               "aten::set_",
                                               "aten::resize_",
                                               "aten::as_strided",
                                               "aten::view",
                                               "aten::_reshape_alias",
                                               "aten::unfold",
                                               "aten::is_set_to",
                                               "aten::record_stream",
                                               "aten::_local_scalar_dense",
                                               "aten::is_pinned",
                                               "aten::_pin_memory",
                                               "aten::copy_",
                                               "aten::empty_quantized",
                                               "aten::_efficientzerotensor",
                                               "aten::view_as_real",
                                               "aten::view_as_complex",
                                               "aten::lift",
                                               "aten::_fused_sdp_choice",
                                               "aten::_cudnn_init_dropout_state",
                                               "aten::_has_same_storage_numel",
                                               "aten::_copy_from_and_resize",
                                               "aten::_nested_view_from_buffer",
                                               "aten::alias",
                                               "aten::expand",
                                               "aten::split",
                                               "aten::chunk",
                                               "aten::unbind"};
  return kNames.count(name) != 0;
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& source, bool non_blocking) {
  if (is_on_backend(self) && self.device() == source.device() && needs_kernel(self, source)) {
    copy_by_kernel(self, source);
    return self;
  }
  return at::native::copy_(self, source, non_blocking);
}

std::vector<c10::RegistrationHandleRAII> install() {
  static const CudaBackend backend;
  set_backend(backend);
  // Fused attention has no kernel of the CPU's under the same name; torch's composite has.
  at::globalContext().setSDPUseFlash(false);
  at::globalContext().setSDPUseMemEfficient(false);
  at::globalContext().setSDPUseCuDNN(false);
  auto& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::RegistrationHandleRAII> installed;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) != 0 || stays_torchs(name.name) || !op || !op->hasSchema() ||
        !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) {
      continue;
    }
    installed.push_back(
        dispatcher.registerImpl(name,
                                c10::DispatchKey::CUDA,
                                c10::KernelFunction::makeFromBoxedFunction<&run_on_cpu>(),
                                std::nullopt,
                                nullptr,
                                "fake CUDA"));
  }
  return installed;
}

// Never destroyed: operators run until the process has ended.
const auto* const kInstalled = new std::vector<c10::RegistrationHandleRAII>(install());

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", &copy);
}

// Its backward has a kernel for CUDA alone: differentiated as torch's composite, as on the CPU.
TORCH_LIBRARY_IMPL(aten, AutogradCUDA, m) {
  m.impl("_fused_rms_norm", &at::compositeimplicitautograd::_fused_rms_norm);
}

}  // namespace
}  // namespace swapline::harness
