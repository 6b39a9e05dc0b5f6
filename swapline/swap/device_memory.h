// The device memory behind one storage: let go, allocated anew, put back. What there is to know of
// streams and of torch's storages for that is known here. Inside swap/ only.
//
// Streams. A caching allocator gives a freed block to whoever asks next on the stream it was
// allocated on, at once. Work on another stream may still use it then: a layer input is often made
// on a side stream (an expert exchange, a pipeline's receive) and used on another. So memory is
// always let go with the stream that is behind its last use; the allocator, which knows the block's
// own stream, keeps the block back when that is another one. When it is the same, CUDA's does
// nothing, and torch_npu's keeps the block back all the same, until the host has seen that the use
// is over. So it is not asked where the block's stream is known here.
#pragma once

#include "swapline/swap/swap_group.h"
#include "swapline/swap/tensor_view.h"

#include <cstddef>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

namespace swapline::detail {

// Memory, and the stream in whose pool it is; nullopt: not known.
struct PooledStorage {
  c10::Storage storage;
  std::optional<c10::Stream> pool;
};

// Tells the allocator that `last_use` is the stream behind the last use of `memory`.
void note_last_use(const PooledStorage& memory, const c10::Stream& last_use);

class DeviceMemory {
 public:
  // Of the storage of `tensor`, which describes it.
  DeviceMemory(const at::Tensor& tensor, Release release);

  size_t bytes() const { return bytes_; }
  bool is_of(const c10::Storage& storage) const {
    return storage_.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
  }
  bool is_there() const { return storage_ && storage_.nbytes() > 0; }
  // Requires is_there().
  const c10::Storage& storage() const { return storage_; }
  PooledStorage memory() const { return {storage_, pool_}; }
  // Handles of the storage, this one included.
  size_t num_holders() const { return storage_ ? storage_.use_count() : 0; }

  // kDrop: gives up its handle; the memory dies with its last one. kInPlace: takes the memory out
  // of the storage, which has 0 bytes then, whoever holds it. Either way what is returned keeps the
  // memory alive. Requires is_there(), and `last_use` behind everything that uses it. Throws what
  // the allocator throws; nothing is changed then.
  PooledStorage let_go(const c10::Stream& last_use);
  // Memory of the same size from the same allocator, in the pool of the current stream; it holds no
  // bytes of the tensors yet. Throws what the allocator throws (c10::OutOfMemoryError).
  PooledStorage allocate() const;
  // The memory is the storage's from now on. Requires: not is_there().
  void put_back(const PooledStorage& memory);

 private:
  Release release_;
  TensorView view_;
  size_t bytes_;
  c10::Allocator* allocator_;
  c10::Device device_;
  // kDrop: none while the memory is let go. kInPlace: always the tensors'.
  c10::Storage storage_;
  std::optional<c10::Stream> pool_;  // of memory that was allocated here
};

}  // namespace swapline::detail
