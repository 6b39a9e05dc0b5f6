// The operators of the NPU backend. Loaded behind libtorch_npu. Enqueued by torch_npu's own
// OpCommand, so that its task queue orders them as it orders real kernels. Copies, allocation,
// views, set_, resize_ and item() stay torch_npu's own.
#include "harness/kernels/device_kernels.h"

#include <set>

#include <ATen/NativeFunctions.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/Exception.h>
#include <torch/library.h>
#include <torch_npu/csrc/aten/NPUGeneratorImpl.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

namespace swapline::harness {
namespace {

class NpuBackend final : public Backend {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }

  void enqueue(c10::Device device,
               const std::string& name,
               const std::vector<HarnessTouchedBytes>& touched,
               std::function<void()> run) const override {
    void* stream = c10_npu::getCurrentNPUStream(device.index()).stream(false);
    at_npu::native::OpCommand::RunOpApiV2(
        name, [stream, name, touched, run]() -> int { return launch(stream, name, touched, run); });
  }

  void finish(c10::Device device) const override {
    harness_finish(c10_npu::getCurrentNPUStream(device.index()).stream(true));
  }

  uint64_t draw(const std::optional<at::Generator>& given, c10::Device device) const override {
    auto generator = given ? *given : at_npu::detail::getDefaultNPUGenerator(device.index());
    const std::lock_guard lock(generator.mutex());
    auto* counter = at::check_generator<at_npu::NPUGeneratorImpl>(generator);
    const auto [seed, offset] = counter->philox_engine_inputs(10);
    return seed * 1000003 + offset;
  }

  // torch_npu hands neither to CANN's kernel.
  bool ignores(std::string_view op, std::string_view argument) const override {
    return op == "aten::_fused_adamw_" && (argument == "grad_scale" || argument == "found_inf");
  }
};

bool stays_torch_npus(const std::string& name) {
  static const std::set<std::string> kNames = {"aten::_local_scalar_dense",
                                               "aten::_copy_from",
                                               "aten::_copy_from_and_resize",
                                               "aten::record_stream",
                                               "aten::is_pinned",
                                               "aten::_pin_memory",
                                               "aten::as_strided",
                                               "aten::view",
                                               "aten::_reshape_alias",
                                               "aten::resize_",
                                               "aten::resize_as_",
                                               "aten::set_",
                                               "aten::item",
                                               "aten::storage_offset",
                                               "aten::_has_compatible_shallow_copy_type",
                                               "aten::unfold",
                                               "aten::view_as_real",
                                               "aten::view_as_complex",
                                               "aten::_to_copy",
                                               "aten::to",
                                               "aten::_is_all_true",
                                               "aten::_fused_adam_",  // its fallback to the CPU
                                               "aten::alias",
                                               "aten::_resize_output_",
                                               "aten::contiguous"};
  return kNames.count(name) != 0 || name.rfind("aten::empty", 0) == 0 ||
         name.rfind("aten::new_empty", 0) == 0;
}

std::optional<c10::SafeKernelFunction> torch_npus_copy;

// What torch_npu would give to a kernel is computed here.
void copy_kernel(const c10::OperatorHandle& op,
                 c10::DispatchKeySet keys,
                 torch::jit::Stack* stack) {
  const at::Tensor to = stack->at(stack->size() - 3).toTensor();
  const at::Tensor from = stack->at(stack->size() - 2).toTensor();
  if (!is_on_backend(to) || !is_on_backend(from) || !needs_kernel(to, from)) {
    torch_npus_copy->callBoxed(op, keys, stack);
    return;
  }
  if (to.device() == from.device()) {
    copy_by_kernel(to, from);
  } else {  // to another device: bytes, then the rest there
    const at::Tensor packed = from.contiguous();
    const at::Tensor landed = at::empty_like(packed, packed.options().device(to.device()));
    landed.copy_(packed);
    at::Tensor(to).copy_(landed);
  }
  torch::jit::drop(*stack, 3);
  stack->emplace_back(to);
}

void clone_kernel(const c10::OperatorHandle& /*op*/,
                  c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) {
  const at::Tensor self = stack->at(stack->size() - 2).toTensor();
  const auto format = stack->at(stack->size() - 1)
                          .toOptional<c10::MemoryFormat>()
                          .value_or(c10::MemoryFormat::Preserve);
  torch::jit::drop(*stack, 2);
  stack->emplace_back(at::empty_like(self, self.options(), format).copy_(self));
}

// torch_npu differentiates these by itself, into kernels that no dispatcher sees: torch's
// composites.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  return at::native::matmul(a, b);
}
at::Tensor attention(const at::Tensor& query,
                     const at::Tensor& key,
                     const at::Tensor& value,
                     const std::optional<at::Tensor>& mask,
                     double dropout,
                     bool is_causal,
                     std::optional<double> scale,
                     bool enable_gqa) {
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, mask, dropout, is_causal, std::nullopt, scale, enable_gqa));
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) {
      return true;
    }
  }
  return false;
}

// Kernels of torch_npu's with an operator of torch behind them that the CPU can compute.
bool can_be_computed(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || is_view(op.schema()) ||
      !op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
    return false;
  }
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU,
                                     c10::DispatchKey::CompositeExplicitAutograd,
                                     c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
                                     c10::DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) {
      return true;
    }
  }
  return false;
}

// Torch warns of every kernel that is replaced.
class NoWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

void install() {
  static const NpuBackend backend;
  set_backend(backend);
  NoWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  // Never destroyed: operators run until the process has ended.
  auto* kernels = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto* autograd = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__, __LINE__);
  constexpr size_t kNamespace = std::string_view("aten::").size();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.name.rfind("aten::", 0) != 0 || !op) {
      continue;
    }
    if (name.name == "aten::copy_") {
      torch_npus_copy = op->getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
      kernels->impl("copy_", torch::CppFunction::makeFromBoxedFunction<&copy_kernel>());
    } else if (name.name == "aten::clone") {
      kernels->impl("clone", torch::CppFunction::makeFromBoxedFunction<&clone_kernel>());
    } else if (!stays_torch_npus(name.name) && can_be_computed(*op)) {
      const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
      kernels->impl((name.name.substr(kNamespace) + overload).c_str(),
                    torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    }
  }
  for (auto* library : {kernels, autograd}) {
    library->impl("matmul", TORCH_FN(matmul));
    library->impl("scaled_dot_product_attention", TORCH_FN(attention));
  }
}

const bool kInstalled = [] {
  install();
  return true;
}();

}  // namespace
}  // namespace swapline::harness
