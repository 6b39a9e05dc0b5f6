// The backend loaded after autograd started its device threads: an error that says so, at the first
// tensor, and a CPU that goes on.
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <dlfcn.h>

namespace {

at::Tensor gradient_on_cpu() {
  const at::Tensor x = at::ones({3}).requires_grad_();
  (x * 2).sum().backward();
  return x.grad();
}

TEST(LateLoad, FirstTensorSaysThatTheDeviceWasLoadedTooLate) {
  gradient_on_cpu();  // autograd starts as many device threads as there are devices now
  ASSERT_NE(dlopen(SWAPLINE_SIM_LIBRARY, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  for (int i = 0; i < 2; ++i) {
    try {
      at::empty({1}, at::Device(at::kPrivateUse1, 0));
      FAIL() << "no error";
    } catch (const c10::Error& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("loaded too late"), std::string::npos) << text;
      EXPECT_NE(text.find("before any backward"), std::string::npos) << text;
    }
  }
  EXPECT_TRUE(at::equal(gradient_on_cpu(), at::full({3}, 2.0F)));
}

}  // namespace
