// The host arena: every state of every parameter, in pinned memory, as ordinary host tensors.
#pragma once

#include "swapline/memory/host_pool.h"
#include "swapline/optimizer/chunk_plan.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::detail {

// Grows by whole blocks; never moves or frees what it holds before its end. Tensors made from it
// keep their block alive.
class HostStates {
 public:
  explicit HostStates(std::shared_ptr<SwapContext> context) : context_(std::move(context)) {}

  // Adds zeroed states for parameters that have none yet. The zeros come from the device by copies
  // of at most `zeros_bytes` each, so that the host never touches the pages; the calling thread
  // waits for them. Throws HostMemoryError, or what the device throws; nothing is added then.
  void add(std::span<const StateShape> shapes, size_t zeros_bytes);

  // Frees the blocks that hold only parameters from `num_params` on; whether there were any.
  // Requires: no other block holds one of those, and no copy is in flight.
  bool truncate(int64_t num_params);

  bool contains(int64_t param) const { return places_.count(param) != 0; }
  std::span<const Block> blocks() const { return layouts_; }
  size_t state_bytes() const { return state_bytes_; }  // of the elements, without padding

  // All rows of a block, where Block::row_begin() says.
  PinnedBuffer& memory(size_t block) { return blocks_[block]->bytes; }

  // Bytes [begin, begin + bytes) of a row as a tensor of kByte that kernels of the device address.
  // Requires: why_not_mapped() of it is empty, and the host waits for those kernels.
  at::Tensor mapped(size_t block, int row, size_t begin, size_t bytes) const;

  // The part of `param` in a row as a dense host tensor; `dtype`: the row's. Requires:
  // contains(param), and no copy of its bytes in flight when it is read or written.
  at::Tensor tensor(int64_t param,
                    int row,
                    at::IntArrayRef sizes,
                    at::IntArrayRef strides,
                    at::ScalarType dtype) const;

 private:
  struct Memory {
    std::shared_ptr<SwapContext> context;  // owns the pool: must outlive the bytes
    PinnedBuffer bytes;
  };
  struct Place {
    size_t block;
    size_t offset_bytes;
  };

  void zero(Memory& memory, const at::Tensor& zeros) const;
  // From the start of its block.
  char* data(size_t block, size_t offset_bytes) const {
    return static_cast<char*>(blocks_[block]->bytes.data()) + offset_bytes;
  }

  std::shared_ptr<SwapContext> context_;
  std::vector<Block> layouts_;
  std::vector<std::shared_ptr<Memory>> blocks_;  // one per layout
  std::unordered_map<int64_t, Place> places_;
  size_t state_bytes_ = 0;
};

}  // namespace swapline::detail
