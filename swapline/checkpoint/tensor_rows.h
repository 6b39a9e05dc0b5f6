// A host tensor's bytes in row-major order, however it lies in memory.
#pragma once

#include <cstddef>
#include <functional>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

enum class PieceUse {
  kRead,   // the caller reads the piece
  kWrite,  // the caller fills the piece
};

// Calls `use` with the tensor's elements piece by piece, in order. A contiguous tensor is one
// piece, its own memory; others go through a buffer. Runs on the calling thread alone.
// tensor: on the host.
void for_each_piece(const at::Tensor& tensor,
                    PieceUse piece_use,
                    const std::function<void(void* data, size_t bytes)>& use);

}  // namespace swapline::detail
