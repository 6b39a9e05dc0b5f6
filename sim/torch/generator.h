// Random numbers of the simulated device: a counter {seed, offset}. Each operator draws from a CPU
// generator seeded by both, so the same state gives the same numbers, on any stream.
#pragma once

#include <ATen/core/Generator.h>

namespace swapline::sim {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);

// The CPU generator that the next operator draws from; advances `generator`'s offset.
at::Generator draw(at::Generator generator);

}  // namespace swapline::sim
