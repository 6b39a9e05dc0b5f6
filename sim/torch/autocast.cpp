// Mixed precision: the operator lists that torch keeps for every accelerator.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define SWAPLINE_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SWAPLINE_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SWAPLINE_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define SWAPLINE_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(SWAPLINE_LOWER_PRECISION)
  AT_FORALL_FP32(SWAPLINE_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(SWAPLINE_FP32_SET_OPT_DTYPE)
  AT_FORALL_PROMOTE(SWAPLINE_PROMOTE)
}

}  // namespace
