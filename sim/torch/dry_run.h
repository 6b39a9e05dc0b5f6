// Shapes without numbers: Meta kernels, and shape functions for the operators that have none in
// C++.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace swapline::sim {

// Replaces the Meta arguments on the stack by Meta results.
// Throws c10::Error naming the operator when its result's shape depends on data.
void run_shape_function(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace swapline::sim
