// What an operator's results will look like, without running it.
#pragma once

#include <optional>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace swapline::harness {

// Tensors on Meta, one for each result. nullopt: Meta cannot tell. Meta kernels written in Python
// take ten times what the operator does, so what was asked once is kept.
std::optional<torch::jit::Stack> shapes_of_results(const c10::OperatorHandle& op,
                                                   const torch::jit::Stack& arguments);

}  // namespace swapline::harness
