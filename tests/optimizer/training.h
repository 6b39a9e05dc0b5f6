// A small training stand-in for the optimizer's tests: parameters of odd kinds on the simulated
// device, gradients that depend only on the step, and copies of everything on the CPU to compare.
#pragma once

#include "sim/torch/sim.h"
#include "swapline/copy/stream_order.h"
#include "swapline/optimizer/adam.h"
#include "swapline/swap/swap_context.h"
#include "tests/support/drop_wait.h"
#include "tests/support/sim_test.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

namespace swapline::testing {

class OptimizerTest : public SimTest {
 protected:
  // One CPU thread: the kernels are small, and threads that wait for each other cost more.
  void SetUp() override {
    at::set_num_threads(1);
    SimTest::SetUp();
  }
  static std::shared_ptr<SwapContext> make_context(std::shared_ptr<StreamOrder> order = nullptr,
                                                   bool timing = false);
};

// A leaf on the device that requires a gradient, with values drawn from `seed`.
at::Tensor make_param(at::IntArrayRef sizes, int seed, at::ScalarType dtype = at::kFloat);

// Two groups: large, small, odd, scalar, empty, bf16, transposed and tied parameters.
std::vector<AdamGroup> odd_groups(const AdamSettings& settings);
// One group of parameters.
std::vector<AdamGroup> plain_groups(const std::vector<std::vector<int64_t>>& sizes,
                                    const AdamSettings& settings = {},
                                    at::ScalarType dtype = at::kFloat);

// Gradients of all steps, uploaded once so that the steps need no sync between them.
class Gradients {
 public:
  Gradients(const std::vector<AdamGroup>& groups, int num_steps, bool with_gaps);
  // Sets the gradients of `step` on the parameters of `groups`; with gaps some are undefined.
  void set(const std::vector<AdamGroup>& groups, int step) const;

 private:
  std::vector<std::vector<at::Tensor>> by_step_;
};

// Everything an optimizer changes, on the CPU.
std::map<std::string, at::Tensor> snapshot(Adam& adam, const std::vector<AdamGroup>& groups);
void expect_equal(const std::map<std::string, at::Tensor>& actual,
                  const std::map<std::string, at::Tensor>& expected);

}  // namespace swapline::testing
