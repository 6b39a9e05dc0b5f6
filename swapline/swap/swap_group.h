// Tensors that leave the device and come back as one.
//
//   kDevice -swap_out-> kSwappingOut -release_device_storage-> kHost -swap_in-> kSwappingIn
//      ^                     |                                  ^                   |
//      |<------recall--------'      discard_device_copy: kDevice'                   |
//      '-------------------------------wait_swap_in---------------------------------'
//
// No call blocks the host. Each is ordered against the streams as its comment says.
#pragma once

#include "swapline/export.h"
#include "swapline/swap/swap_context.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

enum class Residency { kDevice, kSwappingOut, kHost, kSwappingIn };

SWAPLINE_API std::string_view residency_name(Residency residency);

// How the device memory is let go.
enum class Release {
  kDrop,     // the group lets go of its handles; the memory dies with its last user
  kInPlace,  // the memory is taken out from under the tensors, whoever else holds them
};

struct SwapGroupOptions {
  std::string label = "swap group";  // named in errors
  Release release = Release::kDrop;
  MemoryKind kind = MemoryKind::kLayerInputs;
  // kInPlace: throw when a tensor outside the group shares a storage that is about to be emptied.
  bool check_aliases = false;
};

// Move-only. Holds the tensors' storages, each once however many tensors look at it. May be
// destroyed in any state: memory with a copy in flight is kept by the context until it is done.
// A call in the wrong state throws c10::Error naming state, call and label, and changes nothing.
// The context must outlive it.
class SWAPLINE_API SwapGroup {
 public:
  // Throws c10::Error when a tensor may not be swapped (is_valid_for_swap) or is on another device
  // than the context.
  SwapGroup(SwapContext& context,
            const std::vector<at::Tensor>& tensors,
            SwapGroupOptions options = {});
  ~SwapGroup();
  SwapGroup(SwapGroup&&) noexcept;
  SwapGroup& operator=(SwapGroup&&) noexcept;

  Residency residency() const;
  size_t bytes() const;  // of the storages
  const std::string& label() const;

  // Starts the copies to the host behind what the compute stream holds now. kDevice to
  // kSwappingOut. False, and still kDevice, when there is no host memory for them: the context
  // counts it and says so once. Throws what a copy throws; still kDevice then.
  bool swap_out();
  // Whether the copies out are done. Requires: they have been started.
  bool is_swap_out_done() const;
  // Lets go of the device memory: when the copies are done at once, else behind a wait of the
  // compute stream for them. kSwappingOut to kHost. Returns the bytes that stay on the device
  // because others hold the storages (kDrop).
  size_t release_device_storage();
  // The same without a wait: the context keeps the memory until the copies are done.
  void release_device_storage_when_done();
  // Wanted again before it was let go: no copy back is needed. kSwappingOut to kDevice.
  void recall();
  // Allocates on the compute stream and starts the copies back. kHost to kSwappingIn. Throws what
  // the allocation or a copy throws; still kHost then, and may be tried again.
  void swap_in();
  // Makes the compute stream wait for the copies back: the tensors are used on it from now on.
  // kSwappingIn to kDevice. The host copy stays.
  void wait_swap_in();
  // Lets go of device memory whose host copy is still good (swapped in or recalled, not written to
  // since): no copy out is needed. kDevice to kHost.
  void discard_device_copy();
  bool has_host_copy() const;
  // Gives the host memory back. Requires kDevice.
  void drop_host_copy();

  // The tensors, with their sizes, strides and offsets. kDrop: new ones at each call, without
  // autograd history. Requires kDevice or kSwappingOut.
  std::vector<at::Tensor> tensors() const;
  // Copies of the tensors from the host copy, on the CPU. Blocks the host until the copies out are
  // done. Requires a host copy.
  std::vector<at::Tensor> host_tensors();
  // Whether a tensor outside the group looks at one of its storages, or someone else holds one of
  // its tensors. If not, nobody can ask for the bytes again.
  bool is_held_elsewhere() const;
  // Device storages held now; for accounts.
  std::vector<c10::Storage> device_storages() const;

 private:
  struct Impl;
  Impl& impl() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace swapline
