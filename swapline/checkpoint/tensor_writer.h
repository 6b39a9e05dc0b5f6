// Writes named host tensors as safetensors files that torch.distributed.checkpoint reads.
#pragma once

#include "swapline/checkpoint/file_ops.h"
#include "swapline/export.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline {

// One tensor of a checkpoint: `parts`, host tensors, joined along the first dimension. Nearly
// always one part; several where devices hold different rows.
struct NamedTensor {
  std::string name;
  std::vector<at::Tensor> parts;
};

// Writes model-00001-of-0000N.safetensors, ... and model.safetensors.index.json into `folder`,
// which exists; each file is synced. Tensors keep their order; a file that would get longer than
// `file_bytes` (of tensors) ends before, so only a single larger tensor exceeds it. Tensors are
// written row by row as they lie, those with other strides through a buffer of 128 KiB: no copy of
// one is made. No torch device is touched, and the calling thread's alone does the work.
// Throws c10::Error: before anything is written for what cannot be stored (a tensor on a device, a
// dtype these files do not have, parts that do not fit, two of one name); else what `ops` throws.
SWAPLINE_API void write_tensors(FileOps& ops,
                                const std::string& folder,
                                std::span<const NamedTensor> tensors,
                                size_t file_bytes = size_t{4} << 30);

}  // namespace swapline
