// What is public of Swapline: include this, or the one header you need.
#pragma once

#include "swapline/checkpoint/background_writer.h"  // a checkpoint written while training goes on
#include "swapline/checkpoint/checkpoint_store.h"   // CheckpointStore: whole checkpoints, by step
#include "swapline/checkpoint/tensor_reader.h"      // TensorReader: safetensors to host tensors
#include "swapline/copy/copy_streams.h"             // CopyStreams: byte copies on two streams
#include "swapline/copy/stream_order.h"             // Wait, StreamOrder: who waits for whom
#include "swapline/device/backend.h"                // Backend: CUDA, XPU or NPU in a C++ program
#include "swapline/layer_input/layer_inputs.h"      // LayerInputs: recompute with swap built in
#include "swapline/layer_input/wrappers.h"  // the same for frameworks with their own recompute
#include "swapline/memory/host_pool.h"      // HostPool: pinned memory in exact pieces
#include "swapline/optimizer/adam.h"        // Adam and AdamW with states in host memory
#include "swapline/optimizer/muon.h"        // Muon, and AdamW for what are no matrices
#include "swapline/swap/eligibility.h"      // is_valid_for_swap: what may be swapped
#include "swapline/swap/swap_context.h"     // SwapContext: streams and pool of a device
#include "swapline/swap/swap_group.h"       // SwapGroup: tensors that move as one
